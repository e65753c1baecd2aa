"""A table says the same as text, Markdown, HTML and in a terminal."""

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedgela.grids import Grid, padded

GRID = Grid(
    ("method", "GA", "what"),
    [("fedavg", ("9.5", "second"), "a|b"), ("fedgela", ("10.25", "best"), "<b>"), ("none", ("-", ""), "")],
    "percent",
    "Results",
)


def test_text_has_names_to_the_left_and_numbers_in_line() -> None:
    assert GRID.to_text().splitlines() == [
        "Results",
        "method       GA  what",
        "-------  ------  ----",
        "fedavg     9.5_   a|b",
        "fedgela  10.25*   <b>",
        "none         -",
        "percent",
    ]


def test_characters_that_are_two_letters_wide_do_not_shift_a_row() -> None:
    grid = Grid(("client", "samples", "流感"), [("0 東京病院", "12", "3"), ("1 Ulm", "7", "健康")])
    lines = grid.to_text().splitlines()
    assert lines == [
        "client      samples  流感",
        "----------  -------  ----",
        "0 東京病院       12     3",
        "1 Ulm             7  健康",
    ]
    for shown in (lines, grid.to_markdown(aligned=True).splitlines()):
        assert len({cell_len(line) for line in shown}) == 1


def test_markdown_keeps_a_bar_within_its_cell() -> None:
    assert GRID.to_markdown().splitlines() == [
        "| method | GA | what |",
        "|---|---|---|",
        "| fedavg | <u>9.5</u> | a\\|b |",
        "| fedgela | **10.25** | <b> |",
        "| none | - |  |",
    ]


def test_aligned_markdown_is_read_as_text_as_well() -> None:
    assert Grid(("engine", "s"), [("plain", "10"), ("flower", "9")]).to_markdown(
        aligned=True
    ).splitlines() == [
        "| engine |  s |",
        "|:-------|---:|",
        "| plain  | 10 |",
        "| flower |  9 |",
    ]


def test_html_escapes_texts_and_says_marks_in_words() -> None:
    html = GRID.to_html()
    assert '<td class="best"><strong>10.25</strong><span class="hidden"> (best)</span></td>' in html
    assert "<td>&lt;b&gt;</td>" in html and '<th scope="row">none</th><td>-</td><td></td>' in html
    assert "<caption>Results</caption>" in html and '<p class="note">percent</p>' in html


def test_a_column_of_words_has_its_head_with_them() -> None:
    html = Grid(("site", "fault"), [("Bergen", ("it did not answer", "words"))]).to_html()
    assert '<th scope="col" class="words">fault</th>' in html
    assert '<td class="words">it did not answer</td>' in html


def test_a_terminal_has_texts_as_they_are() -> None:
    out = StringIO()
    Console(file=out, width=60).print(Grid(("name", "n"), [("[red]", "1")], title="[bold]").to_rich())
    assert "[red]" in out.getvalue() and "[bold]" in out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_narrow_terminal_names_and_heads_are_folded_and_no_figure_is_cut(width: int) -> None:
    head = ("client", "samples", "classes", "missing", "imbalance", "test", "too small")
    row = ("0 Assistance Publique Paris", "12,219", "5", "50%", "3,710.0", "1,443", "< batch")
    out = StringIO()
    Console(file=out, width=width).print(Grid(head, [row]).to_rich(width))
    lines = out.getvalue().splitlines()
    assert any(all(f" {cell} " in f"{line} " for cell in row[1:]) for line in lines)
    assert "…" not in out.getvalue() and max(map(len, lines)) <= width
    assert ("imbalance" in out.getvalue()) == (width > 60)  # heads are folded last


def test_all_columns_may_be_to_the_left() -> None:
    assert padded([("a", "bb"), ("ccc", "d")], str.ljust) == [["a  ", "bb"], ["ccc", "d "]]
