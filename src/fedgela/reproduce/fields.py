"""What the fields of the page's tables say: numbers, marks and notes."""

import statistics
from collections.abc import Iterable, Sequence

from fedgela.over_seeds import mean_std, spread
from fedgela.paper import Printed
from fedgela.reproduce.document import Field, raised
from fedgela.reproduce.standing import Standing

UNTRIED = ("untried", "untried")
INCOMPLETE = ("incomplete", "untried")
OTHER_TASK = "another task"
NOTHING = "–"


class Notes:
    """Footnotes of a page, each text once: what is not as in the paper."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def of(self, standings: Iterable[Standing]) -> str:
        """References to what is not as in the paper in any of them."""
        found = set()
        for standing in standings:
            if standing.notes:
                text = "; ".join(standing.notes)
                if text not in self.texts:
                    self.texts.append(text)
                found.add(self.texts.index(text) + 1)
        return raised(sorted(found))


def beside(printed: Printed | None, values: Sequence[float], comparable: bool) -> list[Field]:
    """The paper's number, ours and the difference."""
    paper = printed.text if printed else NOTHING
    if not values:
        return [paper, NOTHING, NOTHING]
    ours = mean_std(spread(values))
    if printed is None or printed.value is None:
        return [paper, ours, NOTHING]
    if not comparable:
        return [paper, ours, OTHER_TASK]
    return [paper, ours, _difference(round(statistics.fmean(values), 2) - printed.value)]


def _difference(value: float) -> Field:
    value = round(value, 2) + 0.0  # no -0.00
    return marked(signed(value), value >= 0)


def marked(text: str, reached: bool) -> Field:
    """▲ where ours reaches what the paper has, ▼ where it does not."""
    return (f"▲ {text}", "reached") if reached else (f"▼ {text}", "below")


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
