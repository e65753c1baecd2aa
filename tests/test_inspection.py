"""What `fedgela inspect` finds: each figure against its definition, each file and complaint as promised."""

import builtins
import dataclasses
import json
import re
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgela import inspection_report as report
from fedgela.config import parse_experiment
from fedgela.data import Federation
from fedgela.data.arrays import make_dataset
from fedgela.data.duplicates import find_duplicates
from fedgela.data.federation import make_federation
from fedgela.geometry import phi, simplex_etf
from fedgela.heat_maps import drawn_clients
from fedgela.inspection import Inspection, inspect_federation
from fedgela.inspection_report.text import findings
from fedgela.measures import adaptation_cost
from helpers import Cli, federation_of, tiny_dataset, tiny_npz


def federation(
    train: list[tuple[int, int]], test: list[tuple[int, int]], classes: int, same: tuple[int, ...] = ()
) -> Federation:
    """Of (client, class) pairs, one a sample; every sample differs, but those of `same` (numbered through
    train, then test) are all alike."""
    content = np.arange(len(train) + len(test), dtype=np.float32)[:, None].repeat(3, axis=1)
    content[list(same)] = -1.0
    y = np.array([c for _, c in train + test])
    owner = np.array([k for k, _ in train + test])
    n = len(train)
    names = tuple(f"class {c}" for c in range(classes))
    data = make_dataset("made", content[:n], y[:n], content[n:], y[n:], class_names=names)
    return make_federation(data, int(owner.max()) + 1, owner[:n], owner[n:])


def by_counts(counts: list[list[int]], test: list[list[int]] | None = None) -> Federation:
    """Clients (rows) with these numbers of samples by class (columns); tested on the same."""
    pairs = [
        [(k, c) for k, row in enumerate(table) for c, n in enumerate(row) for _ in range(n)]
        for table in (counts, counts if test is None else test)
    ]
    return federation(pairs[0], pairs[1], len(counts[0]))


def looked_at(counts: list[list[int]], test: list[list[int]] | None = None, **changes: Any) -> Inspection:
    table = {"model": "resnet18", "projection": 84, "batch_size": 2, "sample": len(counts)} | changes
    return inspect_federation(parse_experiment(table), by_counts(counts, test))


# -- the cost --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any),
    st.floats(0.01, 1e4),
    st.sampled_from(["power:1", "power:0.5", "power:0", "exp"]),
    st.floats(0, 2),
)
def test_the_cost_is_the_frobenius_norm_of_the_matrices_difference(
    counts: list[int], E_W: float, form: str, floor: float
) -> None:
    C = len(counts)
    lengths = phi(torch.tensor(counts), form, floor)
    W = E_W**0.5 * simplex_etf(C + 2, C, seed=3, dtype=torch.float64)  # [d, C]
    adapted = W * lengths.double()  # column c of Phi_k W is Phi_kc W_c
    expected = torch.linalg.matrix_norm(adapted - W)
    torch.testing.assert_close(adaptation_cost(lengths, E_W**0.5), expected, rtol=1e-9, atol=1e-9 * E_W)


def test_the_cost_is_of_the_experiments_own_phi_and_E_W() -> None:
    counts = [[4, 0, 0, 0], [1, 1, 1, 1]]
    paper = looked_at(counts, algorithm={"name": "fedgela", "E_W": 25.0})
    assert paper.cost == pytest.approx([5 * (3**2 + 3) ** 0.5, 0.0])
    root = looked_at(counts, algorithm={"name": "fedgela", "E_W": 1.0, "phi": "power:0.5"})
    assert root.cost == pytest.approx([(1 + 3) ** 0.5, 0.0])
    # Q = sqrt(x) over sum_k p_k Q(x_k): class 0 has (1 + 1/2) / 2, the others (0 + 1/2) / 2
    shared = looked_at(counts, algorithm={"name": "fedgela", "E_W": 1.0, "phi": "paper-sqrt"})
    first = ((1 / 0.75 - 1) ** 2 + 3) ** 0.5
    second = ((0.5 / 0.75 - 1) ** 2 + 3 * (0.5 / 0.25 - 1) ** 2) ** 0.5
    assert shared.cost == pytest.approx([first, second])


def test_another_method_is_told_the_cost_of_fedgelas_defaults_and_that_it_is() -> None:
    found = looked_at([[4, 0], [2, 2]], algorithm="fedavg")
    assert found.cost == pytest.approx([(10 * 2) ** 0.5, 0.0])
    assert "FedGELA's defaults: fedavg adapts no ETF" in report.to_text(found)


# -- clients and classes ---------------------------------------------------------------------------


def test_what_was_looked_for_and_not_found_is_one_line() -> None:
    found = dict(findings(looked_at([[4, 0, 0], [0, 1, 0]], [[4, 0, 0], [0, 2, 0]])))
    assert found["too small for a batch"] == "1 of 2 clients (batch_size 2)" and "nowhere" in found
    assert found["looked for, none found"].startswith(
        "classes only in a test set, classes never tested, test"
    )
    assert "never tested" not in found
    text = report.to_text(looked_at([[4, 4]]))
    assert max(map(len, text.split("\n\n")[3].splitlines())) <= 100


def test_figures_by_client() -> None:
    found = looked_at([[6, 2, 0, 0], [0, 0, 3, 0], [1, 0, 0, 0]], batch_size=3)
    assert found.samples.tolist() == [8, 3, 1]
    assert found.held.tolist() == [2, 1, 1]
    assert found.missing.tolist() == [0.5, 0.75, 0.75]
    assert found.imbalance.tolist() == [3.0, 1.0, 1.0]
    assert found.too_small.tolist() == [False, False, True]
    assert found.missing_cells == 8 / 12
    assert found.class_imbalance == 7 / 2


def test_classes_that_only_a_test_set_has_and_that_nobody_has() -> None:
    found = looked_at([[3, 3, 0, 0], [3, 3, 0, 0]], test=[[1, 0, 0, 0], [0, 0, 2, 0]])
    assert found.federation.only_in_test == [2]
    assert found.federation.never_tested == [1]
    assert any("never measured" in line for line in found.advice.warnings)
    assert json.loads(report.to_json(found))["classes_never_tested"] == [1]
    assert found.federation.nowhere == [3]
    assert found.tested_unseen == 1
    # half of the cells are empty, but nobody lacks a class that another has: no PCDD
    assert found.missing_cells == 0.5
    assert found.disjoint_cells == 0
    assert found.advice.verdict == "unlikely"


def test_a_client_without_samples_has_no_imbalance_and_is_no_reason_for_fedgela() -> None:
    found = looked_at([[5, 5], [0, 0], [5, 5]])
    assert np.isnan(found.imbalance[1])
    assert found.cost[1] == 0  # nothing is known of it: W as it is
    assert found.advice.verdict == "unlikely"
    assert any("1 client has no training samples" in line for line in found.advice.warnings)
    assert json.loads(report.to_json(found))["clients"][1]["imbalance"] is None


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_the_chance_that_a_round_misses_a_class_is_counted_out(K: int) -> None:
    counts = [[1, 1, 0], [1, 0, 0], [1, 0, 1], [1, 0, 1], [1, 0, 1]]
    rounds = list(combinations(range(5), K))
    misses = [not any(counts[k][c] for k in chosen) for chosen in rounds for c in range(3)]
    assert looked_at(counts, sample=K).round_misses_class == pytest.approx(np.mean(misses))


def test_natural_clients_have_their_names_and_others_none() -> None:
    fed = by_counts([[3, 1], [1, 3]])
    ids = np.array([0, 2])
    data = dataclasses.replace(
        fed.data,
        client_train=ids[fed.train.owner.numpy()],
        client_test=ids[fed.test.owner.numpy()],
        client_names=("Aachen", "not drawn", "Bergen"),
    )
    fed = dataclasses.replace(fed, data=data)
    natural = inspect_federation(parse_experiment({"partition": "natural"}), fed)
    assert natural.client_names == ["Aachen", "Bergen"]
    assert re.search(r"^1 Bergen +4 +2 ", report.to_text(natural), re.MULTILINE)
    numbered = dataclasses.replace(fed, data=dataclasses.replace(data, client_names=()))
    natural = inspect_federation(parse_experiment({"partition": "natural"}), numbered)
    assert [report.label(natural, k) for k in range(2)] == ["0 id 0", "1 id 2"]
    assert inspect_federation(parse_experiment({"partition": "iid"}), fed).client_names == []


# -- duplicates ------------------------------------------------------------------------------------

# samples 0..3 are training samples of client 0, 0, 1 and 1; 4 and 5 test samples of client 0 and 1
OWNERS = [(0, 0), (0, 1), (1, 0), (1, 1)]
TESTED = [(0, 0), (1, 1)]


def duplicates(*same: int) -> dict[str, Any]:
    return vars(find_duplicates(federation(OWNERS, TESTED, 2, same)))


def test_different_samples_are_no_duplicates() -> None:
    assert all(not value for value in duplicates().values())


def test_a_test_sample_that_is_trained_on() -> None:
    found = duplicates(2, 4)
    assert (found["test_in_train"], found["test_in_train_of_same_client"]) == (1, 0)
    assert found["examples_test_in_train"] == ((0, 2),)
    assert duplicates(0, 4)["test_in_train_of_same_client"] == 1
    assert found["across_clients"] == found["within_client"] == 0


def test_a_training_sample_of_two_clients() -> None:
    found = duplicates(0, 2)
    assert (found["across_clients"], found["within_client"], found["conflicting"]) == (2, 0, 0)
    assert found["examples_across_clients"] == ((0, 2),)


def test_a_sample_twice_on_a_client_with_two_labels() -> None:
    found = duplicates(2, 3)
    assert (found["across_clients"], found["within_client"], found["conflicting"]) == (0, 1, 2)
    assert found["examples_within_client"] == ((2, 3),)


def test_images_that_differ_in_one_bit_are_different() -> None:
    x = np.zeros((4, 5, 6, 3), dtype=np.uint8)
    x[1, 4, 5, 2] = 1
    x[2, 4, 5, 1] = 1
    y = np.array([0, 1])
    fed = make_federation(make_dataset("bits", x[:2], y, x[2:], y), 1, 0 * y, 0 * y)
    assert find_duplicates(fed).examples_test_in_train == ((1, 0),)


# -- advice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "changes", "verdict", "phi_form"),
    [
        ([[5, 5, 5], [5, 5, 5]], {}, "unlikely", None),
        ([[90, 5, 5], [5, 5, 90]], {}, "perhaps", "even"),
        ([[5, 5, 0], [0, 5, 5]], {}, "likely", "power:1"),
        ([[5, 5, 5], [5, 5, 5]], {"sample": 1}, "perhaps", "power:1"),
        ([[90, 5, 0], [0, 5, 90]], {}, "perhaps", "even"),
        ([[90, 5, 0], [0, 5, 90]], {"sample": 1}, "likely", "power:1"),  # few of the clients a round
        ([[90, 5, 0], [50, 0, 9]], {"sample": 1}, "likely", "even"),  # classes uneven overall
        ([[5, 5, 0], *[[5, 5, 5]] * 4], {}, "perhaps", "power:1"),  # a fifteenth missing
        ([*[[9, 0, 0]] * 3, [0, 90, 5]], {}, "perhaps", "even"),  # the only one with a balance has none
        ([[9, 0, 0], [0, 9, 0], [0, 0, 9]], {}, "likely", "power:1"),  # nothing to be out of balance
        ([[9, 0], [0, 9]], {}, "unlikely", None),  # of two classes Phi changes nothing
        ([[9, 8], [8, 9]], {}, "unlikely", None),
    ],
)
def test_the_rules_of_thumb(
    counts: list[list[int]], changes: dict[str, Any], verdict: str, phi_form: str | None
) -> None:
    advice = looked_at(counts, **changes).advice
    assert (advice.verdict, advice.settings.get("phi")) == (verdict, phi_form)


def test_the_verdict_is_one_line_with_reason_settings_and_source() -> None:
    line = report.verdict(looked_at([[90, 5, 0], [0, 5, 90]], sample=1))
    assert "\n" not in line
    assert re.match(r'FedGELA is likely to help with phi = "power:1", E_W = 10: 33% of', line)
    assert "18 times" in line and "docs/findings.md" in line and "even" not in line
    assert report.verdict(looked_at([[90, 5, 5], [5, 5, 90]])).startswith(
        'FedGELA may help with phi = "even"'
    )
    assert report.verdict(looked_at([[90, 5], [5, 90]])).startswith(
        "FedGELA is unlikely to help: of two classes the paper's Phi has no effect"
    )


def test_settings_that_do_not_fit_are_named() -> None:
    found = looked_at([[5, 0, 0], [0, 3, 0], [0, 0, 5]], projection=2, batch_size=4, sample=1)
    notes = "\n".join(found.advice.warnings)
    assert "projection = 2 is too small for an ETF: at least 3" in notes
    # one small client is no reason for small batches everywhere
    assert "1 of 3 clients hold less than one batch of 4, and train on one batch of all they have\n" in notes
    assert "a class has no client in 67% of rounds" in notes


def test_the_batch_that_is_advised_fits_half_of_the_clients() -> None:
    found = looked_at([[1, 0], [0, 7], [9, 0], [0, 20]], batch_size=10)
    (line,) = (line for line in found.advice.warnings if "batch" in line)
    assert line.startswith("3 of 4 clients hold less than one batch of 10")
    assert line.endswith("batch_size = 8 would fit half of all clients")
    (line,) = (
        line for line in looked_at([[1, 0], [0, 1], [9, 0]], batch_size=10).advice.warnings if "batch" in line
    )
    assert line.endswith("train on one batch of all they have")  # batches of one sample help nobody


# -- text, JSON, pictures --------------------------------------------------------------------------


def test_many_clients_are_the_worst_and_a_summary() -> None:
    counts = [[4, 4]] * 3000 + [[8, 0]]
    text = report.to_text(looked_at(counts))
    assert len(text.splitlines()) < 45
    first_row = text.splitlines()[5]
    assert first_row.split()[:3] == ["3000", "8", "1"]
    assert re.search(r"^median +8 +2 +0% +1\.0", text, re.MULTILINE)


def test_few_clients_are_all_there_with_their_counts() -> None:
    text = report.to_text(looked_at([[6, 0], [2, 31]]))
    assert re.search(r"^1 +33 +2 +0% +15\.5 +33 ", text, re.MULTILINE)
    assert re.search(r"^0 +6 +\.$", text, re.MULTILINE)


def test_json_holds_every_client() -> None:
    found = looked_at([[6, 0], [2, 3]])
    read = json.loads(report.to_json(found))
    assert [client["train_counts"] for client in read["clients"]] == [[6, 0], [2, 3]]
    assert [client["cost"] for client in read["clients"]] == pytest.approx(found.cost.tolist())
    assert read["missing_cells"] == 0.25
    assert read["advice"]["verdict"] == found.advice.verdict


def test_a_heat_map_of_many_clients_shows_some_from_the_fewest_classes_to_the_most() -> None:
    found = looked_at([[2, 0, 0]] * 150 + [[1, 1, 0]] * 100 + [[1, 1, 1]] * 50)
    shown = found.held[drawn_clients(found.train_counts)]
    assert len(shown) == 100
    assert shown.tolist() == sorted(shown)
    assert np.bincount(shown)[1:].tolist() == pytest.approx([50, 33, 17], abs=1)


def test_the_heat_map_is_white_where_a_client_lacks_a_class() -> None:
    matplotlib_image = pytest.importorskip("matplotlib.image")
    import io

    def white(counts: list[list[int]]) -> float:
        picture = report.heatmap(looked_at(counts))
        assert picture is not None
        pixels = matplotlib_image.imread(io.BytesIO(picture))[..., :3]
        h, w, _ = pixels.shape
        inside = pixels[h // 4 : 3 * h // 4, w // 4 : 3 * w // 4]
        return float((inside.min(axis=-1) > 0.99).mean())

    full, half = [[50] * 20] * 20, [[50 * ((k + c) % 2) for c in range(20)] for k in range(20)]
    assert white(full) < 0.1
    assert 0.35 < white(half) < 0.6


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def command(command: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`fedgela inspect` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "inspect")


SPLIT = ("--partition", "classes:2", "--clients", "4", "--batch-size", "5")


def test_a_data_set_by_position_by_option_and_by_config_says_the_same(command: Cli, tmp_path: Path) -> None:
    npz = tiny_npz(tmp_path)
    code, text, _ = command(npz, *SPLIT)
    assert code == 0
    assert "4 clients by classes:2" in text and "50.0% of 16" in text
    assert command("--dataset", npz, *SPLIT)[1] == text
    config = tmp_path / "experiment.toml"
    config.write_text(f'dataset = "{npz}"\npartition = "classes:2"\nclients = 4\nbatch_size = 5\n')
    assert command(config)[1] == text
    assert command(config, "--partition", "classes:1")[1] != text
    config.write_text(config.read_text() + '[methods.fedavg]\nlr = 0.03\n[methods.fedgela]\nphi = "even"\n')
    assert command(config)[1] == text  # a comparison's clients


def test_the_seed_decides_the_split(command: Cli, tmp_path: Path) -> None:
    npz = tiny_npz(tmp_path)
    assert len({command(npz, *SPLIT, "--seed", seed)[1].split("test samples", 1)[1] for seed in range(4)}) > 1


def test_out_holds_text_json_picture_and_page(command: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, text, _ = command(tiny_npz(tmp_path), *SPLIT, "--out", tmp_path / "new" / "out")
    assert code == 0
    out = tmp_path / "new" / "out"
    names = ["heatmap.png", "inspect.html", "inspect.json", "inspect.txt"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert text.startswith((out / "inspect.txt").read_text())
    assert (out / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "inspect.html").read_text()
    assert "<desc" in page and "Heat map: 50% of the cells are empty" in page  # in words, too
    assert "var(--ink)" in page  # drawn in the page's colours, light or dark
    assert not re.search(r"https?://|<script|<link", page)


def test_names_are_escaped_in_the_page_and_harmless_in_the_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1])
    data = make_dataset("<b>", x, y, x + 9, y, class_names=("<script>$x_1", "\x1b[31mred"))
    fed = make_federation(data, 1, 0 * y, 0 * y)
    found = inspect_federation(parse_experiment({"batch_size": 2, "sample": 1}), fed)
    report.save(found, tmp_path)
    page = (tmp_path / "inspect.html").read_text()
    assert "<script>" not in page and "<b>" not in page and "&lt;script&gt;" in page
    assert "\x1b" not in (tmp_path / "inspect.txt").read_text()


def test_without_matplotlib_text_and_json_still_work(
    command: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    code, text, _ = command(tiny_npz(tmp_path), *SPLIT, "--out", tmp_path / "out")
    assert code == 0
    assert "heatmap.png and inspect.html are left out: pip install 'fedgela[report]' adds them" in text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["inspect.json", "inspect.txt"]


def test_mistakes_end_in_two_lines_at_most_and_write_nothing(command: Cli, tmp_path: Path) -> None:
    npz = tiny_npz(tmp_path)
    a_file = tmp_path / "file"
    a_file.write_text("mine")
    for arguments, complaint in {
        (npz, "--out", a_file): "--out: .*file is a file, not a folder",
        (npz, "--out", a_file / "below"): "--out: .*file is a file, not a folder",
        (npz, "--out", "/proc/nowhere"): "--out: /.* cannot be written to",  # not even by root
        (npz, "--dataset", "digits"): "--dataset digits: the data set is already given",
        ("nothing.npz", "--out", "out"): "nothing.npz",
        ("nothing.toml", "--out", "out"): "no config file nothing.toml",
        (npz, "--partition", "classes:9", "--out", "out"): "the data has only 4 classes",
        (npz, "--set", "ronds=3", "--out", "out"): "no key 'ronds'",
    }.items():
        code, text, err = command(*arguments)
        assert (code, text) == (2, ""), arguments
        assert re.search(complaint, err) and len(err.splitlines()) <= 2, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "tiny.npz"]
    assert a_file.read_text() == "mine"


def test_a_label_far_beyond_the_others_is_asked_about() -> None:
    data = tiny_dataset()
    y = data.y_train.clone()
    y[0] = 9
    data = dataclasses.replace(data, y_train=y, classes=10)
    found = inspect_federation(parse_experiment({}), federation_of(data, [0, 1] * 30, [0, 1] * 15))
    told = "labels count from 0, so that there are 10 classes, of which no sample has the label 4, 5, 6, 7, 8"
    assert f"{told}: is the highest, 9, a mistake?" in found.advice.warnings


def test_a_class_that_is_named_and_has_no_sample_is_no_question_of_labels() -> None:
    data = dataclasses.replace(tiny_dataset(), classes=5, class_names=("a", "b", "c", "d", "rare"))
    found = inspect_federation(parse_experiment({}), federation_of(data, [0, 1] * 30, [0, 1] * 15))
    assert "classes without any sample: rare" in found.advice.warnings


def test_long_names_that_begin_alike_are_told_apart_in_tables() -> None:
    hospitals = tuple(f"University Hospital, Department of {what}" for what in ("Oncology", "Radiology"))
    kinds = tuple(f"adenocarcinoma of the {where}" for where in ("colon", "lung", "ovary", "prostate"))
    data = dataclasses.replace(
        tiny_dataset(), class_names=kinds, client_names=hospitals, client_train=np.array([0, 1] * 30)
    )
    asked = parse_experiment({"partition": "natural"})
    found = inspect_federation(asked, federation_of(data, [0, 1] * 30, [0, 1] * 15))
    counts = report.tables.counts_grid(found)
    assert counts is not None
    assert len(set(counts.head)) == 1 + len(kinds)
    rows = [str(row[0]) for row in report.tables.clients_grid(found).rows]
    assert [row.removeprefix(f"{k} ")[-9:] for k, row in enumerate(rows)] == [" Oncology", "Radiology"]
