"""What the fields of the page's tables say: numbers, marks and notes."""

from collections.abc import Iterable, Sequence

from fedgela.paper import Printed
from fedgela.reproduce.document import Field
from fedgela.reproduce.standing import Standing, mean_and_std

UNTRIED = Field("untried", tone="untried")
INCOMPLETE = Field("incomplete", tone="untried")
OTHER_TASK = Field("another task")
NOTHING = Field("–")


class Notes:
    """Footnotes of a page, each text once: what is not as in the paper."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def numbers(self, standings: Iterable[Standing | None]) -> tuple[int, ...]:
        found = set()
        for standing in standings:
            if standing is not None and standing.notes:
                text = "; ".join(standing.notes)
                if text not in self.texts:
                    self.texts.append(text)
                found.add(self.texts.index(text) + 1)
        return tuple(sorted(found))


def beside(printed: Printed | None, values: Sequence[float] | None, comparable: bool) -> list[Field]:
    """The paper's number, ours and the difference."""
    paper = Field(printed.text) if printed else NOTHING
    if not values:
        return [paper, UNTRIED if values is None else NOTHING, NOTHING]
    ours, _ = mean_and_std(values)
    if printed is None or printed.value is None:
        return [paper, Field(mean_text(values)), NOTHING]
    difference = _difference(round(ours, 2) - printed.value) if comparable else OTHER_TASK
    return [paper, Field(mean_text(values)), difference]


def _difference(value: float) -> Field:
    value = round(value, 2) + 0.0  # no -0.00
    return marked(signed(value), value >= 0)


def marked(text: str, reached: bool) -> Field:
    """▲ where ours reaches what the paper has, ▼ where it does not."""
    return Field(f"{'▲' if reached else '▼'} {text}", tone="reached" if reached else "below")


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def mean_text(values: Sequence[float], unit: str = "") -> str:
    mean, std = mean_and_std(values)
    return f"{mean:.2f}{unit}" + ("" if std is None else f" ± {std:.2f}")
