import itertools
import math

import pytest

from fedgela.schedule import parse_schedule


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125]),
        ("step:2:0.1", [1, 1, 0.1, 0.1]),
        ("step:1:0.5", [1, 0.5, 0.25, 0.125]),
    ],
)
def test_factors_over_four_rounds(text: str, factors: list[float]) -> None:
    schedule = parse_schedule(text)
    assert [schedule(round, 4) for round in (1, 2, 3, 4)] == pytest.approx(factors)


@pytest.mark.parametrize("text", ["constant", "cosine", "exponential:0.9", "step:3:0.2"])
def test_every_schedule_starts_at_1_never_grows_and_never_reaches_0(text: str) -> None:
    schedule = parse_schedule(text)
    factors = [schedule(round, 50) for round in range(1, 51)]
    assert factors[0] == 1
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert factors[-1] > 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "linear",
        "constant:1",
        "cosine:2",
        "exponential",
        "exponential:0",
        "exponential:1.1",
        "exponential:nan",
        "exponential:x",
        "step:2",
        "step:0:0.5",
        "step:-1:0.5",
        "step:1.5:0.5",
        "step:2:0",
        "step:2:inf",
        "step:2:0.5:1",
    ],
)
def test_a_bad_schedule_is_named_with_the_right_ones(text: str) -> None:
    with pytest.raises(ValueError, match="'constant', 'cosine', 'exponential:GAMMA' or") as error:
        parse_schedule(text)
    assert repr(text) in str(error.value)
