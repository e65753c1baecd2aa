"""What tests of sites in this process have in common."""

from pathlib import Path

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between looks for answers."""
    monkeypatch.setattr("fedgela.flower.exchange.POLL_SECONDS", 0.0)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    from flower.sites import write_data  # which needs Flower

    return write_data(tmp_path)
