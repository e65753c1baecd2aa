"""The report in a real browser, where one is found: all is drawn, nothing is cut off, and clicks do what they
promise, on a desktop and on a phone. Playwright drives the system's Chromium and fetches none of its own."""

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgela.report import Report

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium found: install one to test the report in it"
)
WIDTHS = {"desktop": 1150, "phone": 390}

# of every picture: its size on the page, how much is in it, and words that reach out of it
PICTURES = """svgs => svgs.map(svg => {
  const frame = svg.getBoundingClientRect();
  const outside = t => {
    const box = t.getBoundingClientRect();
    return box.left < frame.left - 3 || box.right > frame.right + 3
      || box.top < frame.top - 3 || box.bottom > frame.bottom + 3;
  };
  const marks = [...svg.querySelectorAll('path, image, use')];
  const drawn = marks.filter(m => m.getBoundingClientRect().width + m.getBoundingClientRect().height > 0);
  return {
    title: svg.querySelector('title').textContent, width: frame.width, height: frame.height,
    marks: drawn.length, cut: [...svg.querySelectorAll('text')].filter(outside).map(t => t.textContent),
  };
})"""
# pictures in which something of a method can be seen
SHOWN = """label => [...document.querySelectorAll('[data-series]')]
  .filter(g => g.dataset.series === label && g.getBoundingClientRect().width > 0).length"""


class Opened:
    """The page, and what it complained of."""

    def __init__(self, page: "playwright.Page", path: Path) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        page.goto(self.address)

    def _console(self, message: "playwright.ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def shown(self, label: str) -> int:
        return int(self.page.evaluate(SHOWN, label))


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def saved(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    report.save(path)
    return path


@pytest.fixture(params=WIDTHS)
def opened(request: pytest.FixtureRequest, browser: "playwright.Browser", saved: Path) -> Iterator[Opened]:
    page = browser.new_page(viewport={"width": WIDTHS[request.param], "height": 900})
    yield Opened(page, saved)
    page.close()


def test_every_picture_is_drawn_and_no_word_of_it_is_cut_off(opened: Opened) -> None:
    pictures = opened.page.eval_on_selector_all("figure svg", PICTURES)
    assert len(pictures) > 12
    assert len(pictures) == opened.page.locator("figure").count()
    for picture in pictures:
        assert picture["width"] >= 200 and picture["height"] >= 50, picture
        assert picture["marks"] >= 5, picture
        assert picture["cut"] == [], picture


def test_it_needs_nothing_but_itself_and_complains_of_nothing(opened: Opened) -> None:
    opened.page.wait_for_load_state("networkidle")
    assert opened.problems == []
    assert opened.requests == [opened.address]


def test_the_page_itself_never_scrolls_sideways(opened: Opened) -> None:
    wide, room = opened.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room


def test_a_click_in_the_legend_hides_a_method_and_shows_it_again(opened: Opened) -> None:
    before = {label: opened.shown(label) for label in ("fedgela", "fedavg")}
    assert min(before.values()) > 4
    button = opened.page.locator(".legend button", has_text="fedgela").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert (opened.shown("fedgela"), opened.shown("fedavg")) == (0, before["fedavg"])
    button.click()
    assert {label: opened.shown(label) for label in before} == before
    assert opened.problems == []


def test_pointing_at_a_method_in_the_legend_fades_the_others(opened: Opened) -> None:
    def faded(label: str) -> set[str]:
        return set(
            opened.page.evaluate(
                """label => [...document.querySelectorAll('[data-series]')]
                   .filter(g => g.dataset.series === label).map(g => g.style.opacity)""",
                label,
            )
        )

    opened.page.locator(".legend button", has_text="fedgela").first.hover()
    assert faded("fedgela") == {""} and faded("fedavg") == {"0.12"}
    opened.page.locator("h1").hover()
    assert faded("fedavg") == {""}


def test_a_click_on_a_column_sorts_the_table(opened: Opened) -> None:
    table = opened.page.locator("table.sortable").first
    names = table.locator("thead th").all_inner_texts()
    column = next(i for i, name in enumerate(names) if name.startswith("GA last"))
    head = table.locator("thead th").nth(column)

    def order() -> list[float]:
        cells = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
        return [float(cell.split()[0]) for cell in cells]

    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert order() == sorted(order(), reverse=True) and len(order()) == 3
    assert len(set(order())) > 1  # there is something to sort
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending" and order() == sorted(order())
    assert opened.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screenshot_to_look_at(browser: "playwright.Browser", saved: Path, scheme: str) -> None:
    """Light ink on a dark page, and dark on a light one."""
    page = browser.new_page(viewport={"width": 1150, "height": 900}, color_scheme=scheme)
    Opened(page, saved)
    path = saved.with_name(f"report-{scheme}.png")
    page.screenshot(path=path, full_page=True)
    height = page.evaluate("document.documentElement.scrollHeight")
    maps = page.evaluate(
        """() => [...document.querySelectorAll('figure image')].map(map => getComputedStyle(map).filter)"""
    )
    assert {one != "none" for one in maps} == {scheme == "dark"}  # little is as dark as the page
    brightness = page.evaluate(
        """() => ['color', 'backgroundColor'].map(of => getComputedStyle(document.body)[of]
             .match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0))"""
    )
    page.close()
    png = path.read_bytes()
    assert struct.unpack(">II", png[16:24]) == (1150, height) and len(png) > 50_000
    ink, paper = brightness
    assert (ink < paper) == (scheme == "light") and abs(ink - paper) > 400
