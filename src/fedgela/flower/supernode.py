"""Flower's SuperNode, which asks for messages every half second in place of its fixed 3 s.

Flower has no setting for it. The change is made only where Flower's loop still has the sleep that it is meant
for; elsewhere the SuperNode runs as it is, and rounds take up to 3 s longer.
"""

import inspect
import sys
import time
from typing import Any

POLL_SECONDS = 0.5
EXPECTED = "time.sleep(3)"


class Impatient:
    """The module `time`, with shorter sleeps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, POLL_SECONDS))


def hurry() -> bool:
    """Whether Flower's loop could be hurried."""
    try:
        from flwr.supernode import start_client_internal as loop

        known = inspect.getsource(loop.start_client_internal).count(EXPECTED) == 1
    except (ImportError, AttributeError, OSError):
        return False
    if known:
        loop.time = Impatient()
    return known


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    hurry()
    sys.exit(flower_supernode())


if __name__ == "__main__":
    main()
