"""The page around the sections: one file that needs nothing else."""

from collections.abc import Sequence

from fedgela.report.colours import DARK_PAGE, LIGHT_PAGE, Style, variables
from fedgela.report.context import Section
from fedgela.report.drawing import Picture, legend_html
from fedgela.report.entries import Setting
from fedgela.report.markup import Table, escape

_LIGHT, _DARK = (" ".join(f"--{name}: {value};" for name, value in mode) for mode in variables())


STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT}
  --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: {LIGHT_PAGE}; --card: #f4f6f9; }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_DARK}
  --ink: #e6eaf0; --soft: #9aa6b5; --line: #333c48; --page: {DARK_PAGE}; --card: #1d232b; }}
}}
""" + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 68rem;
  color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; } h4 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
a { color: inherit; }
.lead, .note { color: var(--soft); margin: 0 0 1rem; } .note { font-size: .85rem; margin-top: .5rem; }
.advice { background: var(--card); border-left: 4px solid var(--orange); padding: .8rem 1rem;
  border-radius: 4px; margin: 1rem 0; } .advice p { margin: 0; }
.advice ul { margin: .4rem 0 0; padding-left: 1.2rem; }
.scroll { overflow-x: auto; position: relative; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--page); }
thead th { white-space: normal; vertical-align: bottom; } tbody th { font-weight: 500; }
td.paper { color: var(--soft); }
th.words, td.words { text-align: left; white-space: normal; min-width: 16rem; }
th button { all: unset; cursor: pointer; } th button::after { content: "\\a0↕"; color: var(--soft); }
th[aria-sort=ascending] button::after { content: "\\a0↑"; }
th[aria-sort=descending] button::after { content: "\\a0↓"; }
button:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--blue); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr));
  gap: 1.2rem 1.6rem; align-items: start; }
figure { margin: 0; min-width: 0; } figure.wide { grid-column: 1 / -1; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .9rem; margin-bottom: .3rem; }
details { font-size: .9rem; margin: .3rem 0; } summary { cursor: pointer; color: var(--soft); }
details .scroll { max-height: 24rem; overflow: auto; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: 4px; overflow-x: auto; font-size: .85rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem .5rem; padding: .5rem 0; margin: .5rem 0;
  background: var(--page); }
.legend button { font: inherit; font-size: .85rem; color: inherit; background: var(--card); cursor: pointer;
  border: 1px solid var(--line); border-radius: 1rem; padding: .1rem .7rem; display: flex; gap: .45rem;
  align-items: center; }
.legend button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.swatch { width: 1.9rem; height: .6rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (min-width: 50rem) { .legend { position: sticky; top: 0; z-index: 2; } }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; }
  figure.wide svg { min-width: 40rem; } th, td { padding: .25rem .5rem; }
  th:first-child { white-space: normal; max-width: 9rem; overflow-wrap: anywhere; } }
@media print { :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --card: #fff; PRINTED }
  html { font-size: 10px; } body { max-width: none; padding: 0; font-size: 1rem; }
  .legend { position: static; }
  figure, tr, .advice { break-inside: avoid; } h2, h3, h4, figcaption { break-after: avoid; }
  .scroll { overflow: visible; } .pictures { grid-template-columns: 1fr 1fr; }
  figure.wide svg { min-width: 0; } th button::after { content: ""; } figure details { display: none; }
  th:first-child { position: static; } }
""".replace("PRINTED", _LIGHT)

# A legend that hides lines, and tables that sort. Without it the page says all the same.
SCRIPT = """
for (const button of document.querySelectorAll('[data-toggle]')) {
  button.addEventListener('click', () => {
    const on = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', on);
    for (const drawn of button.closest('section').querySelectorAll('[data-series]')) {
      if (drawn.dataset.series === button.dataset.toggle) drawn.style.display = on ? '' : 'none';
    }
  });
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
    told = "".join(f"<li>{escape(line)}</li>" for line in notes)
    box = f'<div class="advice"><p>To know:</p><ul>{told}</ul></div>\n' if told else ""
    contents = ""
    if len(settings) > 1:
        links = "".join(
            f'<li><a href="#setting-{i}">{escape(setting.title)}</a></li>'
            for i, (setting, _) in enumerate(settings)
        )
        contents = f"<nav><ul>{links}</ul></nav>\n"
    several = len(settings) > 1
    body = "\n".join(_setting(i, *one, styles, several) for i, one in enumerate(settings))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{box}{contents}{body}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _setting(
    number: int, setting: Setting, made: Sequence[Section], styles: dict[str, Style], several: bool
) -> str:
    """One of several settings has a heading of its own; a single one is the page's."""
    place = f"setting-{number}"
    labels = [entry.label for entry in setting.entries]
    legend = legend_html(styles, labels)
    shown = []
    drawn = False
    for i, section in enumerate(made):
        if not drawn and any(isinstance(part, Picture) for part in section.parts):
            shown.append(legend)  # right before the first lines it is about
            drawn = True
        shown.append(_section(section, f"{place}-{i}", "h3" if several else "h2"))
    title = f"<h2>{escape(setting.title)}</h2>\n" if several else ""
    return f'<section id="{place}">\n{title}{"".join(shown)}</section>\n'


def _section(section: Section, place: str, heading: str) -> str:
    """Pictures that follow each other stand side by side where there is room."""
    html = [f"<{heading}>{escape(section.title)}</{heading}>\n"]
    grid: list[str] = []
    for i, part in enumerate([*section.parts, ""]):
        if isinstance(part, Picture):
            grid.append(part.to_html(f"{place}-{i}"))
            continue
        if grid:
            html.append('<div class="pictures">\n' + "".join(grid) + "</div>\n")
            grid = []
        html.append(part.to_html() if isinstance(part, Table) else part)
    return "".join(html)
