"""The report in a real browser, where one is found: all is drawn, nothing is cut off, and buttons do what
they say, on a desktop and on a phone."""

import json
import shutil
import subprocess
from typing import Any

import pytest
from html_reading import read

from fedgela.report import Report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium found: install one to test the report in it"
)

LISTEN = "<script>window.problems = []; addEventListener('error', e => problems.push(e.message));</script>"
LOOK = """<script>
const svgs = [...document.querySelectorAll('figure svg')];
const inside = (a, b) => a.left >= b.left - 3 && a.right <= b.right + 3
  && a.top >= b.top - 3 && a.bottom <= b.bottom + 3;
const cut = svgs.flatMap(svg => [...svg.querySelectorAll('text')]
  .filter(t => !inside(t.getBoundingClientRect(), svg.getBoundingClientRect()))
  .map(t => svg.querySelector('title').textContent + ': ' + t.textContent));
const sizes = svgs.map(svg => svg.getBoundingClientRect());
const small = sizes.filter(size => size.width < 200 || size.height < 50);
const empty = svgs.filter(svg => svg.querySelectorAll('path, image, use').length < 5);
const shown = label => [...document.querySelectorAll('[data-series]')]
  .filter(g => g.dataset.series === label && g.getBoundingClientRect().width > 0).length;
const button = [...document.querySelectorAll('.legend button')].find(b => b.textContent === 'fedgela');
const before = [shown('fedgela'), shown('fedavg')];
button.click();
const hidden = [shown('fedgela'), shown('fedavg'), button.getAttribute('aria-pressed')];
button.click();
const again = [shown('fedgela'), shown('fedavg')];
const table = document.querySelector('table.sortable');
const head = [...table.tHead.rows[0].cells].find(c => c.textContent.startsWith('GA last'));
const column = head.cellIndex;
const order = () => [...table.tBodies[0].rows].map(r => parseFloat(r.cells[column].textContent));
head.querySelector('button').click();
const falling = [order(), head.getAttribute('aria-sort')];
head.querySelector('button').click();
const rising = [order(), head.getAttribute('aria-sort')];
const found = { problems, cut, before, hidden, again, falling, rising, pictures: svgs.length,
  small: small.length, empty: empty.length,
  page: [document.documentElement.scrollWidth, document.documentElement.clientWidth] };
const out = document.createElement('pre'); out.id = 'found'; out.textContent = JSON.stringify(found);
document.body.append(out);
</script>"""


@pytest.fixture(scope="module", params=[1150, 390], ids=["desktop", "phone"])
def found(request: pytest.FixtureRequest, report: Report, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "report.html"
    path.write_text(report.html.replace("<head>", f"<head>{LISTEN}").replace("</body>", f"{LOOK}</body>"))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/profile",
        "--dump-dom",
    ]
    command = [str(CHROMIUM), *options, f"--window-size={request.param},900", path.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (answer,) = [pre for pre in read(dumped).find("pre") if pre.attributes.get("id") == "found"]
    return json.loads(answer.text())


def test_everything_is_drawn_and_nothing_complains(found: Any) -> None:
    assert found["problems"] == []
    assert found["pictures"] > 12 and found["small"] == 0 and found["empty"] == 0


def test_no_word_of_a_picture_is_cut_off(found: Any) -> None:
    assert found["cut"] == []


def test_the_page_itself_never_scrolls_sideways(found: Any) -> None:
    assert found["page"][0] <= found["page"][1]


def test_the_legend_hides_a_method_and_shows_it_again(found: Any) -> None:
    assert min(found["before"]) > 4
    assert found["hidden"] == [0, found["before"][1], "false"]
    assert found["again"] == found["before"]


def test_the_table_sorts(found: Any) -> None:
    numbers, direction = found["falling"]
    assert direction == "descending" and numbers == sorted(numbers, reverse=True) and len(numbers) == 3
    numbers, direction = found["rising"]
    assert direction == "ascending" and numbers == sorted(numbers)
