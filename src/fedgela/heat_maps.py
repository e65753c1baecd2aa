"""Heat maps, above all of classes by client, for inspections and reports.

matplotlib is imported only when drawing. Text sizes, line widths and colours come from its current settings.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DRAWN_CLIENTS = 100
WRITTEN = 12  # up to so many rows and columns, numbers are written into the cells
NAMED = 60  # up to so many rows and columns, cells are separated by lines
# colours for few and many: both ends stand out from a white page and from a dark one
FEW, MANY = "#c3dcee", "#0a5a94"


def drawn_clients(counts: Ints) -> Ints:
    """The clients to draw, from their counts [N, C]: all, or DRAWN_CLIENTS of them, evenly spaced in the
    order of how many classes they have."""
    N = len(counts)
    if N <= DRAWN_CLIENTS:
        return np.arange(N)
    order = np.lexsort((counts.sum(axis=1), (counts > 0).sum(axis=1)))
    return order[np.linspace(0, N - 1, DRAWN_CLIENTS).round().astype(np.int64)]


@dataclass(frozen=True)
class HeatMap:
    """A matrix [rows, columns] drawn in colours; NaN is left empty."""

    values: Floats
    rows: Sequence[str]
    columns: Sequence[str]
    row_label: str
    column_label: str
    _: KW_ONLY
    scale: tuple[float, float]
    log: bool = False
    number: str = "{:.0f}"
    colour_label: str = ""

    def draw(self, axes: "Axes", width: float, named_rows: float) -> None:
        """`width` is that of all columns in inches, `named_rows` how many rows have room for their names."""
        from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

        values, rows, columns = self.values, self.rows, self.columns
        R, N = values.shape
        colours = LinearSegmentedColormap.from_list("amount", [FEW, MANY]).with_extremes(bad=(0, 0, 0, 0))
        low, high = self.scale
        norm = LogNorm(low, high) if self.log else Normalize(low, max(high, low + 1e-9))
        image = axes.imshow(
            np.ma.masked_invalid(values), cmap=colours, norm=norm, aspect="auto", interpolation="none"
        )
        if max(R, N) <= NAMED:  # thin lines between cells, so that an empty cell can be told from the page
            axes.set_xticks(np.arange(N + 1) - 0.5, minor=True)
            axes.set_yticks(np.arange(R + 1) - 0.5, minor=True)
            axes.grid(which="minor", linewidth=0.4)
            axes.tick_params(which="minor", length=0)
        if max(R, N) <= WRITTEN:
            for r, c in zip(*np.nonzero(~np.isnan(values)), strict=True):
                colour = "#ffffff" if float(norm(values[r, c])) > 0.45 else "#000000"
                text = self.number.format(values[r, c])
                size = 7 if width >= 0.5 * N else 6 if width >= 0.35 * N or len(text) < 4 else 5
                axes.text(c, r, text, ha="center", va="center", fontsize=size, color=colour)
        # names of columns are upright if short, else turned; there is room for so many of them
        upright = max(map(len, columns), default=0) <= 3
        digits = max(map(len, columns), default=1) if upright else 1
        _name(axes.set_xticks, columns, width / (0.06 * digits + 0.08))
        _name(axes.set_yticks, rows, named_rows)
        if not upright:
            for label in axes.get_xticklabels():  # ending at their ticks, whatever font a page has
                label.set(rotation=90, rotation_mode="anchor", ha="right", va="center")
            _make_room_below(axes)
        axes.set_xlabel(self.column_label)
        axes.set_ylabel(self.row_label)
        if self.colour_label:
            bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=25, label=self.colour_label)
            if self.log:
                marks = whole_ticks(int(high))
                bar.set_ticks(marks, labels=[f"{n:,}" for n in marks])
                bar.minorticks_off()


def class_map(
    counts: Ints | Floats, classes: Sequence[str], clients: Sequence[str], whose: str = "client"
) -> HeatMap:
    """Training samples by class and client. Colours start at one sample, so that maps can be compared."""
    values = np.where(counts > 0, counts, np.nan)
    scale = (1.0, float(np.nanmax(values, initial=2)))
    return HeatMap(values, classes, clients, "class", whose, scale=scale, log=True, colour_label="samples")


def whole_ticks(most: int) -> list[int]:
    """Numbers of samples to mark on the logarithmic scale of colours, up to the largest."""
    steps = (1,) if most >= 1000 else (1, 3) if most >= 30 else (1, 2, 5)
    return [s * 10**e for e in range(len(str(most))) for s in steps if s * 10**e <= most]


def shortened(label: str, most: int) -> str:
    """A long name cut to its beginning and its end: names of one method's runs often differ at the end."""
    end = most // 2 - 1
    return label if len(label) <= most else f"{label[: most - end - 1]}…{label[-end:]}"


def _name(set_ticks: Any, names: Sequence[str], room: float) -> None:
    """Set ticks with as many names as there is room for, evenly spaced."""
    places = range(0, len(names), max(1, math.ceil(len(names) / max(room, 1))))
    set_ticks(places, [shortened(names[i], 18) for i in places])


def _make_room_below(axes: "Axes") -> None:
    """Make the figure higher by the longest turned name: where the layout has no room for rows and names, it
    gives up, and names are cut off on all sides."""
    figure: Any = axes.figure
    longest = max(label.get_window_extent().height for label in axes.get_xticklabels())
    figure.set_figheight(figure.get_figheight() + longest / figure.dpi)
