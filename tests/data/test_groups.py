"""Samples that belong together: no split that is made here has some on one side and some on the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgela.config import parse_experiment
from fedgela.data import Dataset, build_federation, load_dataset
from fedgela.data.arrays import make_dataset
from fedgela.data.split import own_tests
from fedgela.errors import UserError
from fedgela.inspection import inspect
from fedgela.inspection_report.text import to_text
from fedgela.notes import worth_knowing
from fedgela.resolve import resolve


def patients(n: int = 600, clients: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    """Samples of patients who are each at one client and mostly of one class."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, n // 6, n)
    return {
        "x": np.stack([np.arange(n), group], axis=1).astype(float),  # a sample tells who it is
        "y": np.where(rng.random(n) < 0.1, rng.integers(0, 4, n), group % 4),
        "client": group % clients,
        "group": group,
    }


def sides(data: Dataset) -> tuple[set[int], set[int]]:
    """The patients in training and in test."""
    train, test = (set(x[:, 1].long().tolist()) for x in (data.x_train, data.x_test))
    return train, test


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "mine.npz", **arrays)
    return str(folder / "mine.npz")


@pytest.mark.parametrize("natural", [True, False])
@pytest.mark.parametrize("names", [True, False])
def test_own_tests_are_whole_groups(tmp_path: Path, natural: bool, names: bool) -> None:
    arrays: dict[str, Any] = patients()
    if names:
        arrays["group"] = np.char.add("patient ", arrays["group"].astype(str))
    if not natural:
        del arrays["client"]
    data = load_dataset(saved(tmp_path, **arrays))
    train, test = sides(data)
    assert not train & test and data.groups == (len(train | test), 0)
    assert 0.15 < len(data.y_test) / 600 < 0.25
    assert set(data.y_test.tolist()) == set(data.y_train.tolist()) == {0, 1, 2, 3}
    if natural:
        assert data.client_test is not None and set(data.client_test.tolist()) == {0, 1, 2}


def test_an_id_of_several_samples_is_told_where_there_are_no_groups(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x, y = np.random.default_rng(0).random((20, 2)), np.arange(20) % 2
    parts = {"x_train": x[:10], "y_train": y[:10], "x_test": x[10:], "y_test": y[10:]}

    def notes(ids: list[Any], **more: Any) -> list[tuple[str, ...]]:
        table = {"label": y, "a": x[:, 0], "id": pa.array(ids), **more}
        parquet.write_table(pa.table(table), tmp_path / "t.parquet")
        halves = {"id_train": ids[:10], "id_test": ids[10:]} | (
            {"group_train": y[:10], "group_test": y[10:]} if more else {}
        )
        arrays = {key: np.array(value, dtype=str) for key, value in halves.items() if key[:2] == "id"}
        files = [str(tmp_path / "t.parquet"), saved(tmp_path, **parts, **halves | arrays)]
        return [load_dataset(file).notes for file in files]

    for told in notes([f"P{i // 3}" for i in range(20)]):
        assert len(told) == 1 and told[0].startswith("3 samples have the id 'P0' (6 more ids are repeated)")
        assert "call the ids 'group'" in told[0]
    assert notes([f"P{i}" for i in range(20)]) == [(), ()]
    assert notes(["7", *[""] * 19]) == [(), ()]  # ids that are missing
    assert notes(["P"] * 20, group=np.arange(20)) == [(), ()]


def test_groups_of_one_sample_change_nothing() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 300)
    assert (own_tests(y, None, rng.permutation(300)) == own_tests(y)).all()


def test_no_class_is_passed_over_where_clients_have_few_groups() -> None:
    """Eight clients of nine groups, three of each class: the fifth of each is of another class."""
    group = np.repeat(np.arange(72), 4)
    client, y = group // 9, group % 3
    tested = np.bincount(y[own_tests(y, client, group)])
    assert tested.sum() == 8 * 4 and tested.min() >= 8


def test_a_group_counts_as_one_of_its_rarest_class() -> None:
    """Class 1 is in two groups, each of which begins with samples of class 0."""
    y = np.array([0, 0, 1] * 2 + [0] * 30)
    group = np.repeat([0, 1, *range(2, 12)], 3)
    test = own_tests(y, None, group)
    assert (test & (y == 1)).sum() == 1


def test_a_client_whose_groups_are_anothers_too_keeps_its_samples_for_training() -> None:
    y, client, group = np.array([0] * 10 + [0]), np.array([0] * 10 + [1]), np.array([*range(10), 4])
    assert np.flatnonzero(own_tests(y, client)).tolist() == [4, 9]
    assert np.flatnonzero(own_tests(y, client, group)).tolist() == [9]


@pytest.mark.parametrize("partition", ["natural", "dirichlet:0.5", "classes:2", "iid"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_validation_holds_out_whole_groups(tmp_path: Path, partition: str, share: float) -> None:
    data = load_dataset(saved(tmp_path, **patients()))
    clients = None if partition == "natural" else 4
    whole = build_federation(data, partition, clients, 0, seed=0)
    held = build_federation(data, partition, clients, 0, seed=0, validation=share)
    train, out = sides(held.data)
    assert not train & out
    assert train | out == sides(data)[0]  # and no test samples
    assert abs(len(held.data.y_test) / len(data.y_train) - share) < 0.05
    if partition == "natural":  # groups are of six samples or so
        assert (np.abs(held.test.sizes - share * whole.train.sizes) < 6).all()


def test_held_out_groups_are_drawn_at_random_and_never_all_of_a_client(tmp_path: Path) -> None:
    data = load_dataset(saved(tmp_path, **patients()))
    drawn = [sides(build_federation(data, "natural", None, 0, seed, 0.2).data)[1] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    x, y = np.zeros((20, 2)), np.arange(20) % 2
    ids = np.repeat([0, 1], 10)
    two = make_dataset(
        "two", x, y, x, y, ids, ids, group_train=np.repeat([0, 1, 2], [10, 5, 5]), group_test=y + 7
    )
    assert build_federation(two, "natural", None, 0, 0, 0.9).train.sizes.tolist() == [10, 5]
    with pytest.raises(UserError, match=r"validation: 0\.1 of a client's training samples is not one group"):
        build_federation(two, "natural", None, 0, 0, 0.1)


def test_clients_that_are_tested_elsewhere_get_tests_of_whole_groups() -> None:
    """No client of the test samples has training samples: a fifth of each client's takes their place."""
    given = patients()
    x, y, client, group = (given[key] for key in ("x", "y", "client", "group"))
    data = make_dataset(
        "p", x, y, x[:9], y[:9], client, client[:9] + 50, group_train=group, group_test=group[:9]
    )
    train, test = sides(build_federation(data, "natural", None, 0, seed=0).data)
    assert test and not train & test


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_group_is_no_feature(tmp_path: Path, suffix: str) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    given = patients()
    table = pandas.DataFrame({"a": given["x"][:, 0], "b": given["x"][:, 1], "label": given["y"]})
    table["group"] = [f"{number:03}" for number in given["group"]]
    path = tmp_path / f"t.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    data = load_dataset(str(path))
    assert data.feature_names == ("a", "b")
    train, test = sides(data)
    assert test and not train & test


def test_groups_on_both_sides_of_the_files_own_split_are_told(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    parts = {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}
    told = "2 of 6 groups have samples both in training and in test: on new groups accuracies may be lower"
    names = np.array(["a", "b", "c", "d", "e", "f"])
    for group_test, expected in ((np.arange(10) % 2 + 2, True), (np.arange(10) % 2 + 4, False)):
        group_train = np.arange(30) % 4 if not expected else np.arange(30) % 6
        dataset = saved(tmp_path, **parts, group_train=names[group_train], group_test=names[group_test])
        asked = parse_experiment({"dataset": dataset, "partition": "iid", "clients": 2, "batch_size": 5})
        assert (told in worth_knowing(asked, *resolve(asked))) == expected
        found = inspect(asked)
        assert (told in found.advice.warnings) == expected
        line = f"6, {2 if expected else 0} of them both in training and in test"
        assert line in to_text(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group": np.zeros(9, int)}, r"group must be 10 integers or strings, one a sample, not int64 \[9\]"),
        ({"group": np.zeros(10)}, "group must be 10 integers or strings"),
        ({"group": np.arange(10) % 2}, "no class has two groups of samples, of which one is for testing"),
        ({"groups": np.arange(10)}, r"an array groups, which nothing reads \(did you mean 'group'\?\)"),
        ({"group_train": np.arange(8)}, "groups must be given for train and test, or for neither"),
    ],
)
def test_wrong_groups_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    given = {"x": np.zeros((10, 3)), "y": np.arange(10) % 2}
    with pytest.raises(UserError, match=message):
        load_dataset(saved(tmp_path, **given, **changes))


def test_groups_of_a_file_that_is_split_have_two_names(tmp_path: Path) -> None:
    x, y = np.ones((4, 2)), [0, 1] * 2
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    with pytest.raises(UserError, match="group_train and group_test"):
        load_dataset(saved(tmp_path, **parts, group=y))
    with pytest.raises(UserError, match="must both be integers, or both strings"):
        load_dataset(saved(tmp_path, **parts, group_train=y, group_test=["a", "b"] * 2))
