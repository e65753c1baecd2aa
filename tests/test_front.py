"""What `import fedgela` offers."""

import subprocess
import sys

import pytest

import fedgela


@pytest.mark.parametrize("name", fedgela.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fedgela, name) is not None
    assert name in dir(fedgela)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        fedgela.runn  # noqa: B018


def test_the_package_is_imported_without_torch() -> None:
    program = "import sys, fedgela; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
