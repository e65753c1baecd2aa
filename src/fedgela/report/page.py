"""The page around the sections: one file that needs nothing else."""

from collections.abc import Sequence

from fedgela.grids import Grid
from fedgela.html_page import advice, attribute, escape, html_page, paragraph
from fedgela.report.colours import PALETTE, Style, variables
from fedgela.report.context import Section
from fedgela.report.drawing import Picture
from fedgela.report.entries import Setting

_LIGHT, _DARK = (" ".join(f"--{name}: {value};" for name, value in mode) for mode in variables())

_STYLE = """
:root { LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
@media print { :root { LIGHT } }
body { max-width: 68rem; }
.advice { border-color: var(--orange); }
.short { border-color: var(--blue); } .short p + p { margin-top: .6rem; } .short span { color: var(--soft); }
td.paper { color: var(--soft); }
th button { all: unset; cursor: pointer; } th button::after { content: "\\a0↕"; color: var(--soft); }
th[aria-sort=ascending] button::after { content: "\\a0↑"; }
th[aria-sort=descending] button::after { content: "\\a0↓"; }
button:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--blue); }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr));
  gap: 1.2rem 1.6rem; align-items: start; }
.three { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.three figcaption { min-height: 3em; } .pictures + .pictures { margin-top: 1.2rem; }
figure.wide { grid-column: 1 / -1; }
details { font-size: .9rem; margin: .3rem 0; } summary { cursor: pointer; color: var(--soft); }
details .scroll { max-height: 24rem; overflow: auto; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: 4px; overflow-x: auto; font-size: .85rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem .5rem; padding: .5rem 0; margin: .5rem 0;
  background: var(--page); }
.legend button { font: inherit; font-size: .85rem; color: inherit; background: var(--card); cursor: pointer;
  border: 1px solid var(--line); border-radius: 1rem; padding: .1rem .7rem; display: flex; gap: .45rem;
  align-items: center; }
.legend button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.legend span { color: var(--soft); font-size: .85rem; align-self: center; }
.contents ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: 0;
  font-size: .9rem; } h2, h3 { scroll-margin-top: 3.5rem; }
.swatch { width: 1.9rem; height: .6rem; }
@media (hover: none) { .legend span { display: none; } }
@media (min-width: 50rem) { .legend { position: sticky; top: 0; z-index: 2; } }
@media print { .legend { position: static; } .legend span, .contents { display: none; }
  .pictures { grid-template-columns: 1fr 1fr; } .three { grid-template-columns: 1fr 1fr 1fr; }
  th button::after { content: ""; } figure details { display: none; } }
""".replace("LIGHT", _LIGHT).replace("DARK", _DARK)

# A legend that hides lines, and tables that sort. Without it the page says all the same.
_SCRIPT = """
for (const button of document.querySelectorAll('[data-toggle]')) {
  const series = () => button.closest('section').querySelectorAll('[data-series]');
  const mine = drawn => drawn.dataset.series === button.dataset.toggle;
  button.addEventListener('click', () => {
    const on = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', on);
    for (const drawn of series()) if (mine(drawn)) drawn.style.display = on ? '' : 'none';
  });
  const alone = on => () => {
    for (const drawn of series()) drawn.style.opacity = on && !mine(drawn) ? .12 : '';
  };
  button.addEventListener('pointerenter', alone(true));
  button.addEventListener('pointerleave', alone(false));
}
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], given = [...body.rows];
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const falling = head.getAttribute('aria-sort') !== 'descending';
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
      const key = row => { const text = row.cells[column].textContent, n = parseFloat(text);
        return Number.isNaN(n) ? text : n; };
      const order = (a, b) => typeof a !== typeof b ? (typeof a === 'number' ? 1 : -1)
        : a < b ? -1 : a > b ? 1 : 0;
      const rows = [...given].sort((a, b) => order(key(a), key(b)));
      body.append(...(falling ? rows.reverse() : rows));
    });
  });
}
"""


def page(
    title: str,
    lead: str,
    notes: Sequence[str],
    settings: Sequence[tuple[Setting, Sequence[Section]]],
    styles: dict[str, Style],
) -> str:
    several = len(settings) > 1
    box = advice("To know:", notes) if notes else ""
    contents = ""
    if several:
        links = "".join(
            f'<li><a href="#setting-{i}">{escape(setting.title)}</a></li>'
            for i, (setting, _) in enumerate(settings)
        )
        contents = f'<nav aria-label="Settings"><ul>{links}</ul></nav>\n'
    body = "\n".join(_setting(i, *one, styles, several) for i, one in enumerate(settings))
    head = f"<h1>{escape(title)}</h1>\n{paragraph(lead, 'lead')}"
    return html_page(title, head + box + contents + body, _STYLE, _SCRIPT)


def _setting(
    number: int, setting: Setting, made: Sequence[Section], styles: dict[str, Style], several: bool
) -> str:
    """One of several settings has a heading of its own; a single one is the page's."""
    place = f"setting-{number}"
    drawn = [i for i, section in enumerate(made) if section.pictures] if len(setting.entries) > 1 else []
    legend = _legend({entry.label: styles[entry.label] for entry in setting.entries})
    shown = [
        # the legend stands right before the first pictures that it is about
        _section(section, f"{place}-{i}", "h3" if several else "h2", legend if i in drawn[:1] else "")
        for i, section in enumerate(made)
    ]
    links = "".join(
        f'<li><a href="#{place}-{i}">{escape(section.title)}</a></li>' for i, section in enumerate(made)
    )
    contents = f'<nav class="contents" aria-label="Parts"><ul>{links}</ul></nav>\n'
    title = f"<h2>{escape(setting.title)}</h2>\n" if several else ""
    return f'<section id="{place}">\n{title}{contents}{"".join(shown)}</section>\n'


def _legend(styles: dict[str, Style]) -> str:
    """A button for each method, which hides and shows what is drawn of it."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-toggle={attribute(label)}>'
        f"{_swatch(style)}{escape(label)}</button>"
        for label, style in styles.items()
    )
    hint = "<span>point to see one alone, click to hide it</span>"
    return f'<div class="legend" role="group" aria-label="Methods shown">{buttons}{hint}</div>\n'


def _swatch(style: Style) -> str:
    """A short line as the method's is drawn."""
    dashes = " ".join(f"{1.4 * d:g}" for d in style.dashes)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        '<svg class="swatch" viewBox="0 0 28 8" aria-hidden="true">'
        f'<path d="M1 4H27" stroke="var(--{PALETTE[style.index][0]})" stroke-width="2.4"{dashed}/></svg>'
    )


def _section(section: Section, place: str, heading: str, legend: str) -> str:
    """Pictures that follow each other stand side by side where there is room."""
    html = [f'<{heading} id="{place}">{escape(section.title)}</{heading}>\n', legend]
    grid: list[str] = []
    kind = ""
    for i, part in enumerate([*section.parts, ""]):  # an empty part ends the last row of pictures
        if isinstance(part, Picture):
            grid.append(part.to_html(f"{place}-{i}"))
            kind = "pictures three" if part.narrow else "pictures"
            continue
        if grid:
            html.append(f'<div class="{kind}">\n' + "".join(grid) + "</div>\n")
            grid = []
        html.append(part.to_html() if isinstance(part, Grid) else part)
    return "".join(html)
