"""A relay passes on everything that a listener can hear."""

from inspect import signature
from unittest.mock import create_autospec

import pytest

from fedgela.listener import Listener, Relay

HEARD = [name for name, value in vars(Listener).items() if not name.startswith("_") and callable(value)]


@pytest.mark.parametrize("name", HEARD)
def test_everything_is_passed_on(name: str) -> None:
    behind = create_autospec(Listener, instance=True)
    relay = Relay(behind)
    told = [object() for _ in signature(getattr(relay, name)).parameters]
    getattr(relay, name)(*told)
    getattr(behind, name).assert_called_once_with(*told)


def test_the_name_of_the_current_run_is_passed_on() -> None:
    behind = Listener()
    relay = Relay(behind)
    relay.label = "fedavg seed 1"
    assert (behind.label, relay.label) == ("fedavg seed 1", "fedavg seed 1")
