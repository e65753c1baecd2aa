"""A relay passes on everything that a listener can hear."""

from inspect import signature
from unittest.mock import create_autospec

import pytest

from fedgela.listener import Listener, Relay

HEARD = [name for name in vars(Listener) if not name.startswith("_")]


@pytest.mark.parametrize("name", HEARD)
def test_everything_is_passed_on(name: str) -> None:
    behind = create_autospec(Listener, instance=True)
    relay = Relay(behind)
    told = [object() for _ in signature(getattr(relay, name)).parameters]
    getattr(relay, name)(*told)
    getattr(behind, name).assert_called_once_with(*told)
