"""HTML pages that are a single file: their style (light, dark, on a phone, on paper), and pieces of HTML."""

import html
from collections.abc import Iterable

LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14181e"

_COLOURS = f"""
:root {{ color-scheme: light dark;
  --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: {LIGHT_PAGE}; --card: #f4f6f9; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6eaf0; --soft: #9aa6b5; --line: #333c48; --page: {DARK_PAGE}; --card: #1d232b; }}
}}
@media print {{ :root {{ --ink: #000; --soft: #444; --line: #d5d5d5; --page: #fff; --card: #fff; }} }}
"""
_STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; } h4 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
a { color: inherit; }
.lead, .note { color: var(--soft); margin: 0 0 1rem; } .note { font-size: .85rem; margin-top: .5rem; }
.advice { background: var(--card); border-left: 4px solid var(--soft); padding: .8rem 1rem;
  border-radius: 4px; margin: 1rem 0; } .advice p { margin: 0; }
.advice ul { margin: .4rem 0 0; padding-left: 1.2rem; }
.scroll { overflow-x: auto; position: relative; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--page); }
thead th { white-space: normal; vertical-align: bottom; } tbody th { font-weight: 500; }
th.words, td.words { text-align: left; white-space: normal; min-width: 16rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
figure { margin: 0; min-width: 0; } figcaption { font-size: .9rem; margin-bottom: .3rem; }
figure svg { display: block; width: 100%; height: auto; }
/* heat maps: on a dark page little is dark, and much stands out, as on a light one; so are texts in cells */
@media screen and (prefers-color-scheme: dark) {
  figure image { filter: invert(.92) hue-rotate(180deg); }
  figure text[style*="#ffffff"], figure text:not([style*=fill]) { filter: invert(1); }
}
@media (max-width: 40rem) { figure.wide svg { min-width: 40rem; } }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; }
  th, td { padding: .25rem .5rem; }
  th:first-child { white-space: normal; min-width: 5.5rem; max-width: 9rem; overflow-wrap: anywhere; } }
@media print { html { font-size: 10px; } body { max-width: none; padding: 0; font-size: 1rem; }
  figure, tr, .advice { break-inside: avoid; } h2, h3, h4, figcaption, caption { break-after: avoid; }
  figure.wide svg { min-width: 0; } .scroll { overflow: visible; } th:first-child { position: static; } }
"""


def html_page(title: str, body: str, style: str = "", script: str = "") -> str:
    """A page with this body; `style` and `script` are added to what all pages have."""
    run = f"<script>{script}</script>\n" if script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_COLOURS}{_STYLE}{style}</style>
</head>
<body>
<main>
{body}
</main>
{run}</body>
</html>
"""


def escape(text: str) -> str:
    return html.escape(text, quote=False)


def attribute(text: str) -> str:
    return f'"{html.escape(text)}"'


def paragraph(text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{escape(text)}</p>\n"


def advice(text: str, lines: Iterable[str] = ()) -> str:
    """A box with what a reader should see first: a text, and a list below it."""
    listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="advice">{paragraph(text)}{f"<ul>{listed}</ul>" if listed else ""}</div>\n'


def described(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names with a text for each."""
    rows = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>\n{rows}\n</dl>\n"


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{content}</details>\n"
