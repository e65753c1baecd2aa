"""One way to draw: matplotlib to SVG inside the page, and to PNG and SVG files in the sizes papers use.

Inside the page, colours are the page's own variables, so that a picture follows it into dark mode, and what
belongs to a method carries its label, so that a legend can hide it. matplotlib is imported only when drawing.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgela.files import write_atomically
from fedgela.grids import Grid
from fedgela.html_page import details, escape
from fedgela.report.colours import Style, variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_WIDTH = 3.9  # inches of a picture in the page, of a wide one, and of one of three beside each other
WIDE, NARROW = 7.6, 2.9
COLUMNS = (3.25, 6.75)  # inches: one column of a paper, and its whole width
PNG_DPI = 300

# Stand-ins: colours that nothing else has, which become the page's variables.
INK, SOFT, LINE, PAGE = "#1c2430", "#5b6675", "#d9dee5", "#fefefe"
_VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", PAGE: "--page"} | {
    colour: f"--{name}" for name, colour in variables()[0]
}
_SETTINGS = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and printed
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.parse_math": False,  # a class or a method may be called $5
}


@dataclass(frozen=True)
class Picture:
    """A picture with its text: what it shows in a line, what is to be seen in it, and its numbers."""

    name: str  # of its files
    title: str
    text: str  # for those who do not see it
    draw: Callable[["Axes"], None]
    height: float = 0.72  # of the width
    flat: float | None = None  # the same for a file as wide as a page, where it differs
    wide: bool = False
    narrow: bool = False
    named: Callable[["Axes"], None] | None = None  # writes names into it, where no legend stands below
    styles: dict[str, Style] | None = None  # for the legend of its files
    data: Grid | None = None

    def figure(self, width: float, legend: bool = False) -> "Figure":
        from matplotlib.figure import Figure

        height = width * (self.flat if self.flat is not None and width > 5 else self.height)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        self.draw(axes)
        if legend and self.styles:
            _add_legend(figure, self.styles, width)
        elif self.named is not None:
            self.named(axes)
        return figure

    def to_html(self, place: str) -> str:
        """The picture in the page; `place` is an id that no other picture has."""
        width = WIDE if self.wide else NARROW if self.narrow else PAGE_WIDTH
        with _settings(place):
            svg = _saved(self.figure(width), "svg").decode()
        head = (
            f'<svg role="img" aria-labelledby="{place}-t {place}-d" '
            f'viewBox="{_view_box(svg)}">'
            f'<title id="{place}-t">{escape(self.title)}</title>'
            f'<desc id="{place}-d">{escape(self.text)}</desc>'
        )
        body = _page_body(svg, place)
        below = details("The numbers", self.data.to_html()) if self.data else ""
        kind = ' class="wide"' if self.wide else ""
        return (
            f"<figure{kind}>\n<figcaption>{escape(self.title)}</figcaption>\n"
            f'<div class="scroll">{head}{body}</div>\n{below}</figure>\n'
        )

    def save(self, folder: Path, prefix: str = "") -> None:
        for width in COLUMNS:
            with _settings(self.name):
                figure = self.figure(width, legend=True)
                for form in ("png", "svg"):
                    path = folder / f"{prefix}{self.name}-{width:g}in.{form}"
                    write_atomically(path, _saved(figure, form))


def plain_axes(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True)


def belongs(artist: Any, label: str) -> None:
    """Mark what is drawn as a method's, for the page's legend."""
    artist.set_gid(f"series={label}")


def line_style(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "linestyle": (0, style.dashes) if style.dashes else "solid"}


def _add_legend(figure: "Figure", styles: dict[str, Style], width: float) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **line_style(style)) for label, style in styles.items()]
    columns = max(1, min(len(handles), int(width / 1.05)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.16 * rows)


@contextlib.contextmanager
def _settings(salt: str) -> Iterator[None]:
    import matplotlib

    # no date and no random ids: the same runs give the same bytes
    settings: Any = _SETTINGS | {"svg.hashsalt": salt}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.simplefilter("ignore")  # a font without some script's letters draws boxes
        yield


def _saved(figure: "Figure", form: str) -> bytes:
    out = io.BytesIO()
    if form == "svg":
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    else:
        figure.savefig(out, format="png", dpi=PNG_DPI, facecolor="white")
    return out.getvalue()


# -- from matplotlib's SVG to the page's -----------------------------------------------------------


def _view_box(svg: str) -> str:
    found = re.search(r'viewBox="([^"]*)"', svg)
    assert found is not None
    return found.group(1)


# where a picture's places stand; names of methods and ticks' labels are words, though they may hold numbers
_GEOMETRY = re.compile(r'\s(?:d|points|transform|x|y|x1|x2|y1|y2|r|width|height)="[^"]*"')
_DECIMALS = re.compile(r"\d+\.\d{3,}")


def _shorter(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _page_body(svg: str, place: str) -> str:
    """What follows the <svg> tag, without what only a file needs, with ids that are this picture's own, and
    with the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = svg[svg.index(">", svg.index("<svg")) + 1 :]
    svg = re.sub(r'id="series=([^"]*)"', r'data-series="\1"', svg)
    svg = svg.replace("xlink:href=", "href=")
    referred = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{place}-{m[1]}"' if m[1] in referred else "", svg)
    svg = re.sub(r'(href="#|url\(#)([\w.-]+)', rf"\g<1>{place}-\2", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    # the page's own font, and no more decimals than a screen shows
    svg = re.sub(r"(font: (?:\S+ )*?[\d.]+px) [^;\"]*", r"\1 inherit", svg)
    svg = re.sub(r"font: ((?:\S+ )*?)([\d.]+)px inherit", r"font-size: \2px", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    svg = _GEOMETRY.sub(lambda m: _DECIMALS.sub(_shorter, m[0]), svg)
    svg = re.sub(r"/>\n\s*", "/>", svg)
    return re.sub(r"\n\s+", "\n", svg)
