from pathlib import Path

import pytest

from helpers import tiny_npz


@pytest.fixture(scope="session")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_npz(tmp_path_factory.mktemp("data"))
