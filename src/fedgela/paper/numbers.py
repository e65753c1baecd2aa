"""A number as the paper prints it."""

import re
from dataclasses import dataclass

_FORM = re.compile(r"-|[+]?\d+(\.\d+)?x?( ± \d+(\.\d+)?)?")


@dataclass(frozen=True)
class Printed:
    """'72.8', '77.27 ± 0.19', '+3.76', '2.38x', or '-' where the paper gives none."""

    text: str

    def __post_init__(self) -> None:
        if not _FORM.fullmatch(self.text):
            raise ValueError(f"{self.text!r} is not a number as the paper prints them")

    @property
    def value(self) -> float | None:
        mean = self.text.partition(" ± ")[0].rstrip("x")
        return None if mean == "-" else float(mean)

    @property
    def half_unit(self) -> float:
        """How far rounding to the printed decimals can be off."""
        decimals = self.text.partition(" ± ")[0].rstrip("x").partition(".")[2]
        return 0.5 * 10.0 ** -len(decimals)
