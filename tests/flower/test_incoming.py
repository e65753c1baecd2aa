"""Whatever a site answers, the run goes on with the others: the site is named, in the round's record."""

import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from rich.console import Console
from torch.nn.functional import pad

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.algorithms.fedgela import FedGELA
from fedgela.checkpoints import FolderStore
from fedgela.config import Experiment, parse_experiment
from fedgela.data import load_dataset
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.flower import sharing
from fedgela.flower.wire import About, Groups, decode, encode
from fedgela.progress import PlainView
from fedgela.runfolder import RunFolder
from fedgela.runs import go_on
from fedgela.watch import Watcher
from flower.sites import CLASSES, Played, write_data
from flower.tampering import Way, tensor, value, weights
from helpers import tiny

NAN, MANY = float("nan"), torch.tensor([10**6])
KEYS = {"train": "state_lost", "join": "tested", "classes": "classes"}  # by which an answer is known


pytestmark = pytest.mark.usefixtures("quick")


def small(whole: Path, **changes: Any) -> Experiment:
    return tiny(
        whole, **{"partition": "natural", "clients": 3, "rounds": 2, "algorithm": "fedgela"} | changes
    )


def without(group: str) -> Way:
    return lambda groups, about: about.pop(group) if group in about else groups.pop(group)


def in_place_of(task: str, way: Way) -> Callable[[bytes], bytes]:
    """The site's answers to one task changed, other answers as they are."""

    def tamper(answer: bytes) -> bytes:
        groups, about = decode(answer)
        known = next((name for name, key in KEYS.items() if key in about), "score")
        if known != task:
            return answer
        way(groups, about)
        return encode(groups, about)

    return tamper


def rounds(played: Played) -> list[Record]:
    """All of them, as the run writes them."""
    server = played.server()
    progress = server.begin()
    records = [server.step(progress) for _ in range(played.experiment.rounds)]
    records.append(server.finish(progress))
    json.dumps(records, allow_nan=False)
    assert all(entry.isfinite().all() for entry in progress.server.model.values())
    return records


TRAINED: dict[str, tuple[Way, str]] = {
    "an unknown measure": (tensor("measures", "note", torch.zeros(1)), "sent the measure note"),
    "a measure of local runs": (
        tensor("measures", "classifier", torch.zeros(4, 4)),
        "the measure classifier",
    ),
    "a group of local runs": (tensor("own_norm", "x", torch.zeros(1)), "sent own_norm, which nobody asked"),
    "an infinite loss": (
        tensor("measures", "loss_sum", torch.tensor([NAN])),
        "loss_sum as one finite number",
    ),
    "a loss of nothing": (tensor("measures", "loss_count", torch.zeros(1)), "has trained on no sample"),
    "more right than tested": (tensor("measures", "right", MANY), "says that 1e+06 of its 12 test samples"),
    "less than none right": (tensor("measures", "right", -torch.ones(1)), "says that -1 of its 12"),
    "half an answer right": (tensor("measures", "right", torch.full((1,), 0.5)), "says that 0.5 of its 12"),
    "no measures": (without("measures"), "did not send the measure loss_count"),
    "seconds in words": (value("seconds", "soon"), "sent seconds as soon, which is no float"),
    "no seconds": (value("seconds", None), "sent seconds as None"),
    "seconds that are no number": (value("seconds", NAN), "trained for nan s"),
    "seconds of ages": (value("seconds", 1.7e308), "says that it trained for 1.7e+308 s"),
    "samples that are a truth": (value("samples", True), "sent samples as True, which is no int"),
    "an unknown value": (value("counts", [1, 2]), "sent the value counts"),
    "a missing value": (without("state_lost"), "did not send the value"),
    "whole weights": (weights(lambda w: w.long()), "as int64, not float32"),
    "weights of truths": (weights(lambda w: w > 0), "as bool, not float32"),
    "weights of 8 bits": (weights(lambda w: w.to(torch.float8_e4m3fn)), "is of the type torch.float8_e4m3fn"),
}


@pytest.mark.parametrize("how", TRAINED)
def test_an_update_that_is_none_is_the_sites_fault(how: str, whole: Path) -> None:
    way, told = TRAINED[how]
    played = Played(whole.parent, small(whole), whole)
    played.grid.tamper[1] = in_place_of("train", way)
    first, second, _ = rounds(played)
    for record in (first, second):
        assert list(record["faults"]) == ["east"] and told in record["faults"]["east"]
        assert record["train_loss"] is not None and 0 <= record["PA"] <= 100


@pytest.mark.parametrize("about", [None, [1], "text", 7])
def test_an_answer_that_says_nothing_of_itself_is_the_sites_fault(about: object, whole: Path) -> None:
    content = safetensors.torch.save({"a/b": torch.zeros(1)}, metadata={"about": json.dumps(about)})
    with pytest.raises(ValueError, match="no readable message"):
        decode(content)
    played = Played(whole.parent, small(whole), whole)
    played.grid.tamper[1] = lambda answer: content  # from joining on
    assert "no readable message" in rounds(played)[0]["faults"]["east"]


def test_a_run_whose_first_rounds_nobody_answers_is_told_to_its_end_without_a_word_of_divergence(
    whole: Path,
) -> None:
    """As `federation run` does, from the run's files."""
    played = Played(whole.parent, small(whole, algorithm="fedavg", rounds=3))
    server = played.server()
    folder, store = RunFolder(whole.parent / "run"), FolderStore(whole.parent / "run" / "clients")
    folder.path.mkdir()
    folder.create(server.experiment)
    console = Console(file=StringIO(), width=200)

    class Told(PlainView):
        def round(self, record: Record) -> None:
            super().round(record)
            if record["round"] == 2:
                played.grid.tamper = {}

    played.grid.tamper = {site: lambda answer: b"" for site in range(3)}
    with Told(console) as view:
        result = go_on(folder, server, store, None, view)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "round 1/3  loss -  GA -  local -" in text and "no finite number" not in text
    assert result["diverged_round"] is None and result["GA"]["last_round"] == 3
    assert Watcher(folder.path).look().runs[0].diverged_round is None


@pytest.mark.parametrize(
    "way", [value("error", "\x1b[2J\nclean"), tensor("\x1b[2J clean", "x", torch.ones(1))]
)
def test_words_of_a_site_are_one_line_that_no_terminal_acts_upon(way: Way, whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    played.grid.tamper[1] = in_place_of("train", way)
    assert r"\x1b[2J clean" in rounds(played)[0]["faults"]["east"]
    assert all(note.isprintable() for note in played.notes)


def test_a_bottomless_answer_is_no_readable_message() -> None:
    deep = safetensors.torch.save({"a/b": torch.zeros(1)}, metadata={"about": "[" * 100_000})
    with pytest.raises(ValueError, match="no readable message"):
        decode(deep)


@pytest.mark.parametrize(("algorithm", "name"), [("fedgen", "counts"), ("fedproto", "weights")])
def test_counts_that_a_method_shares_are_counts(algorithm: str, name: str, whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm=algorithm), whole)
    played.grid.tamper[1] = in_place_of("train", tensor("extra", name, torch.tensor([5, 5, -5, 5])))
    assert "counts that it cannot have" in rounds(played)[0]["faults"]["east"]


@pytest.mark.parametrize("far", [1e3, -1e3, 1e30])
def test_class_means_that_are_far_longer_than_most_sites_do_not_become_prototypes(
    far: float, whole: Path
) -> None:
    """The others' local models would be drawn after them, until they are no numbers any more."""

    def longer(groups: Groups, about: About) -> None:
        groups["extra"]["means"] = torch.full_like(groups["extra"]["means"], far)

    played = Played(whole.parent, small(whole, algorithm="fedproto", rounds=3), whole)
    played.grid.tamper[1] = in_place_of("train", longer)
    for record in rounds(played)[:3]:
        assert record["faults"] == {
            "east": "sent class means that are more than 10 times as long as most others'"
        }
        assert record["train_loss"] < 10


WRAPPED = torch.tensor([2**63 - 1, 2**63 - 1, 2, 0])  # as int64 their sum is 0


@pytest.mark.parametrize(("algorithm", "name"), [("fedgen", "counts"), ("fedproto", "weights")])
def test_counts_whose_sum_wraps_around_are_none(algorithm: str, name: str, whole: Path) -> None:
    played = Played(whole.parent, small(whole, algorithm=algorithm), whole)
    played.grid.tamper[1] = in_place_of("train", tensor("extra", name, WRAPPED))
    assert "counts that it cannot have" in rounds(played)[0]["faults"]["east"]


def test_shared_counts_whose_sum_wraps_around_are_none(whole: Path) -> None:
    def too_many(groups: Groups, about: About) -> None:
        groups[sharing.GROUP]["train"] = WRAPPED + torch.tensor([0, 0, about["samples"], 0])

    def confused(groups: Groups, about: About) -> None:
        if (found := groups[sharing.GROUP].get(sharing.CONFUSION)) is not None:
            groups[sharing.GROUP][sharing.CONFUSION] = WRAPPED + pad(found.sum(dim=1)[:, None], (3, 0))

    for task, way, told in (
        ("join", too_many, "by_class of another number of samples"),
        ("train", confused, "by_class of more test samples than it has of a class"),
    ):
        played = Played(whole.parent, small(whole), whole)
        played.grid.sites[1].share_classes = True
        played.grid.tamper[1] = in_place_of(task, way)
        assert told in rounds(played)[1]["faults"]["east"]


def test_a_fault_is_told_in_few_words_however_many_the_site_sends(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    played.grid.tamper[1] = in_place_of("train", weights(lambda w: torch.zeros([1] * 10_000)))
    fault = rounds(played)[0]["faults"]["east"]
    assert "as [1, 1, 1" in fault and len(fault) < 500


SCORED: dict[str, tuple[Way, str]] = {
    "no measures": (without("measures"), "did not send the measure right"),
    "two numbers": (tensor("measures", "right", torch.zeros(2)), "did not send right as one finite number"),
    "no number": (tensor("measures", "right", torch.tensor([NAN])), "right as one finite number"),
    "more than tested": (tensor("measures", "right", MANY), "says that 1e+06 of its 12 test samples"),
}


@pytest.mark.parametrize("how", SCORED)
def test_a_score_that_is_none_is_left_out_of_the_means(how: str, whole: Path) -> None:
    """Of the global model in a round, and of the fine-tuned ones at the end."""
    way, told = SCORED[how]
    played = Played(whole.parent, small(whole, algorithm="fedavg"))
    played.grid.tamper[1] = in_place_of("score", way)
    first, second, end = rounds(played)
    for record in (first, second):
        assert told in record["faults"]["east"] and 0 <= record["GA"] <= 100
    assert told in end["faults"]["east"] and end["last"]["by_client"][1] is None
    assert 0 <= end["last"]["PA"] <= 100


# -- joining ---------------------------------------------------------------------------------------

JOINED: dict[str, tuple[Way, str]] = {
    "no samples": (without("samples"), "did not send the value samples"),
    "samples in words": (value("samples", "many"), "sent samples as many, which is no int"),
    "fewer than none": (value("samples", -5), "says that it has -5 training and 12 test samples"),
    "more than can be": (value("samples", 10**30), "training and 12 test samples"),
    "no sums": (without("sums"), "did not send the tensor sums/squares"),
    "sums of another shape": (tensor("sums", "total", torch.zeros(7).double()), "as [7], not [1]"),
    "sums that are no numbers": (
        tensor("sums", "total", torch.tensor([NAN]).double()),
        "values that are no finite numbers",
    ),
    "sums of more than white": (
        tensor("sums", "total", torch.full((1,), 1e300, dtype=torch.float64)),
        "sums over its samples' values that cannot be",
    ),
    "sums of samples that vary by less than nothing": (
        tensor("sums", "squares", torch.zeros(1, dtype=torch.float64)),
        "sums over its samples' values that cannot be",
    ),
    "an unknown kind": (value("kind", "smells"), "samples that cannot be, smells of shape"),
    "a shape of words": (value("shape", ["a", 8, 8]), "samples that cannot be"),
    "a shape beyond all memory": (value("shape", [4096, 4096, 4096]), "samples that cannot be"),
    "a shape whose net would be": (value("shape", [1, 8, 10**5]), "samples that cannot be"),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", JOINED)
def test_who_joins_with_nonsense_is_refused_and_named_every_round(how: str, late: bool, whole: Path) -> None:
    way, told = JOINED[how]
    played = Played(whole.parent, small(whole, rounds=3), whole, min_sites=2)
    played.grid.tamper[1] = in_place_of("join", way)
    played.grid.offline = {1} if late else set()
    server = played.server()
    played.grid.offline = set()
    progress = server.begin()
    for _ in range(3):
        record = server.step(progress)
        assert record["clients"] == [0, 2] and told in record["faults"]["east"]
    assert len([note for note in played.notes if told in note]) == 1  # is said once


def other_shape(played: Played, folder: Path) -> None:
    """East gets images of another size."""
    data = load_dataset(str(folder / "site-1.npz"))
    for name in ("x_train", "x_test"):
        object.__setattr__(data, name, getattr(data, name)[..., :5, :5])
    played.grid.sites[1].data = data


@pytest.mark.parametrize("late", [False, True])
def test_a_site_with_samples_of_another_shape_is_refused_while_the_others_go_on(
    late: bool, whole: Path
) -> None:
    played = Played(whole.parent, small(whole), whole, min_sites=2)
    other_shape(played, whole.parent)
    played.grid.offline = {1} if late else set()
    server = played.server()
    played.grid.offline = set()
    record = server.step(server.begin())
    told = "has image of shape 1x5x5, but the run's sites have image of shape 1x8x8"
    assert record["clients"] == [0, 2] and record["faults"] == {"east": told}


def test_a_site_whose_table_has_other_columns_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k, names in enumerate((("age", "dose"), ("dose", "age"), ("age", "dose"))):
        rows = [f"{a:.3f},{b:.3f},{i % 4}" for i, (a, b) in enumerate(rng.normal(size=(40, 2)))]
        (tmp_path / f"site-{k}.csv").write_text("\n".join([",".join((*names, "label")), *rows]) + "\n")
    experiment = parse_experiment(
        {"model": "mlp", "rounds": 2, "epochs": 1, "batch_size": 5, "sample": 3, "device": "cpu"}
    )
    played = Played(tmp_path, experiment, suffix=".csv", min_sites=2)
    server = played.server()
    record = server.step(server.begin())
    told = "has columns of other names, or in another order, than the run's sites"
    assert record["clients"] == [0, 2] and record["faults"] == {"east": told}
    # a run that is resumed still knows
    server.agreed.write(tmp_path / "agreed.json")
    played.recalled = tmp_path / "agreed.json"
    again = played.server()
    assert again.step(again.begin())["faults"] == {"east": told}


def test_refusals_that_leave_too_few_sites_end_the_run_in_a_line_that_says_why(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole, min_sites=3)
    other_shape(played, whole.parent)
    with pytest.raises(
        UserError, match="only 2 of at least 3 sites are there; east: has image of shape 1x5x5"
    ):
        played.server()


def test_a_resumed_run_has_the_shape_that_it_began_with(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    first = played.server()
    first.agreed.write(whole.parent / "agreed.json")
    other_shape(played, whole.parent)
    played.recalled, played.grid.offline = whole.parent / "agreed.json", {0, 2}
    with pytest.raises(UserError, match="only 0 of at least 1 sites are there; east: has image"):
        played.server()


def test_a_site_that_refuses_is_named_until_it_takes_part(whole: Path) -> None:
    played = Played(whole.parent, small(whole, rounds=4), whole)
    played.grid.sites[1].federation = "other"
    server = played.server()
    progress = server.begin()
    for _ in range(2):
        record = server.step(progress)
        assert record["faults"] == {"east": "this site's folder is of another federation"}
    assert played.notes == ["east: this site's folder is of another federation"]
    played.grid.sites[1] = played.site(1)
    record = server.step(progress)
    assert "faults" not in record and record["clients"] == [0, 1, 2]


def test_a_site_that_is_refused_is_not_counted_among_those_that_a_round_waits_for(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole, min_sites=2)
    played.grid.sites[1].federation = "other"
    server = played.server()
    progress = server.begin()
    played.grid.offline = {2}
    with pytest.raises(UserError, match="only 1 of at least 2"):
        server.step(progress)
    assert "waiting for sites: 1 of 2 are here" in played.notes


@pytest.mark.parametrize("value_", [1e30, -1e30, -0.1, 1.1])
@pytest.mark.parametrize("phi", ["paper-linear", "paper-sqrt", "paper-exp"])
def test_statistics_that_no_site_can_have_are_refused(phi: str, value_: float, whole: Path) -> None:
    """One site's would shrink or drop every site's Phi."""
    extreme = value_ * (math.e if phi == "paper-exp" else 1.0)
    played = Played(whole.parent, small(whole, algorithm=FedGELA(phi=phi)), whole)
    played.grid.tamper[1] = in_place_of(
        "join", tensor("statistics", "phi_normaliser", torch.full((4,), extreme, dtype=torch.float64))
    )
    assert "phi_normaliser with values that no site can have" in rounds(played)[0]["faults"]["east"]


def test_class_counts_of_another_number_of_samples_are_refused(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    played.grid.sites[1].share_classes = True
    played.grid.tamper[1] = in_place_of("join", tensor(sharing.GROUP, "train", torch.ones(4).long()))
    assert "another number of samples" in rounds(played)[0]["faults"]["east"]


def test_figures_by_class_are_of_the_classes_that_a_site_joined_with(whole: Path) -> None:
    played = Played(whole.parent, small(whole), whole)
    played.grid.sites[1].share_classes = True
    played.grid.tamper[1] = in_place_of("train", tensor(sharing.GROUP, "right", torch.full((4,), 99)))
    assert "more test samples than it has" in rounds(played)[0]["faults"]["east"]


CLASS_NAMES: dict[str, tuple[object, str]] = {
    "words": ("cat, cow", "sent classes as cat, cow, which is no list"),
    "none": ([], "sent no list of class names"),
    "numbers": ([1, 2], "sent no list of class names"),
    "too many": ([str(name) for name in range(10_001)], "has 10001 classes, and more than 10000 need"),
    "a blank": (["cat", " "], "a class name that is empty"),
    "twice": (["hen", "hen "], "has the same class name twice"),
    "colours": (["cat", "\x1b[31mcow"], r"has the class name '\x1b[31mcow', with characters that no screen"),
}


@pytest.mark.parametrize("how", CLASS_NAMES)
def test_class_names_that_are_none_are_refused(how: str, tmp_path: Path) -> None:
    names, told = CLASS_NAMES[how]
    whole = write_data(tmp_path, named=True)
    played = Played(tmp_path, small(whole), whole, classes=())
    played.grid.tamper[1] = in_place_of("classes", value("classes", names))
    server = played.server()
    assert server.federation.data.class_names == CLASSES
    assert any(told in note for note in played.notes if note.startswith("east: "))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["20000"], "a class with a number of 10000 or more"),
        (["cat"], "has classes without names that are no numbers"),
    ],
)
def test_numbers_of_classes_that_are_none_are_refused(names: list[str], told: str, tmp_path: Path) -> None:
    whole = write_data(tmp_path)
    played = Played(tmp_path, small(whole), whole, classes=())
    played.grid.tamper[1] = in_place_of("classes", value("classes", names))
    assert played.server().federation.data.class_names == ("0", "1", "2", "3")
    assert any(told in note for note in played.notes if note.startswith("east: "))
