"""Which commit of its repository the code is."""

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def commit() -> str | None:
    """The code's commit, with '-dirty' where the package's files differ from it; None where it is not known.
    FEDGELA_COMMIT tells what a machine that the code was copied to cannot know."""
    if told := os.environ.get("FEDGELA_COMMIT"):
        return told
    package = Path(__file__).resolve().parent.parent
    try:
        # an installed copy may lie in a repository that is somebody else's
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        changed = _git(package, "status", "--porcelain", "--", ".")
        return _git(package, "rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    return told.stdout.strip()
