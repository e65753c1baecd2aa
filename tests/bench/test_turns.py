"""A framework's loop goes one round at a time."""

from collections.abc import Callable

import pytest

from fedgela.bench.turns import Turns


def test_the_loop_waits_between_rounds() -> None:
    log: list[str] = []

    def loop(end_of_round: Callable[[], None]) -> None:
        try:
            for round in range(100):
                log.append(f"round {round}")
                end_of_round()
        finally:
            log.append("over")

    turns = Turns(loop)
    assert log == []
    turns.play()
    assert log == ["round 0"]
    turns.play()
    assert log == ["round 0", "round 1"]
    turns.close()
    assert log == ["round 0", "round 1", "over"]


def test_an_error_of_the_loop_is_the_round_s() -> None:
    def loop(end_of_round: Callable[[], None]) -> None:
        end_of_round()
        raise ValueError("no such thing")

    turns = Turns(loop)
    turns.play()
    for _ in range(2):
        with pytest.raises(ValueError, match="no such thing"):
            turns.play()
    turns.close()


def test_a_loop_that_ends_early_is_an_error() -> None:
    turns = Turns(lambda end_of_round: None)
    with pytest.raises(RuntimeError, match="ended before"):
        turns.play()
    turns.close()


def test_closed_before_its_first_round() -> None:
    Turns(lambda end_of_round: None).close()
