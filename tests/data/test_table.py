"""The user's own tables: .parquet and .csv."""

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela.config import parse_experiment
from fedgela.data import load_dataset
from fedgela.errors import UserError
from fedgela.inspection import inspect
from fedgela.notes import worth_knowing
from fedgela.resolve import resolve


def parquet(path: Path, **columns: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow reads parquet: pip install 'fedgela[hub]'")
    tables = pytest.importorskip("pyarrow.parquet")
    tables.write_table(pyarrow.table(columns), path / "mine.parquet")
    return path / "mine.parquet"


def test_false_and_true_are_names_in_every_table(tmp_path: Path) -> None:
    """So that a model trained on one table knows the labels of another."""
    ill = [False, True] * 5
    data = [load_dataset(str(parquet(tmp_path, age=np.arange(10.0), label=ill)))]
    rows = "".join(f"{age},{label}\n" for age, label in enumerate(ill))
    (tmp_path / "mine.csv").write_text(f"age,label\n{rows}")
    data.append(load_dataset(str(tmp_path / "mine.csv")))
    for one in data:
        assert one.class_names == ("False", "True")
        assert one.y_train.tolist() == data[0].y_train.tolist()


def encoded(level: int, size: int = 10) -> bytes:
    Image = pytest.importorskip("PIL.Image", reason="images are read with Pillow: pip install 'fedgela[hub]'")
    buffer = io.BytesIO()
    Image.new("L", (size, size), level).save(buffer, "PNG")
    return buffer.getvalue()


def test_columns_of_numbers_are_features(tmp_path: Path) -> None:
    age, weight = np.arange(10), np.linspace(0, 1, 10)
    path = parquet(tmp_path, age=age, label=np.arange(10) % 2, weight=weight, smoker=age > 5)
    data = load_dataset(str(path))
    assert data.name == "mine"
    assert data.spec.shape == (3,)
    assert data.x_test[:, 0].tolist() == [8, 9]  # every fifth of each class
    np.testing.assert_allclose(data.x_test.numpy(), [[8, weight[8], 1], [9, weight[9], 1]], rtol=1e-6)


@pytest.mark.parametrize("name", [None, "id"])
def test_the_index_of_pandas_is_no_feature(tmp_path: Path, name: str | None) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"label": np.arange(20) % 2, "a": np.ones(20), "b": np.ones(20)})
    table = table.sample(frac=1, random_state=0).rename_axis(name)
    table.to_parquet(tmp_path / "t.parquet")
    assert load_dataset(str(tmp_path / "t.parquet")).feature_names == ("a", "b")
    if name is None:  # a .csv has it as a column without a name
        table.to_csv(tmp_path / "t.csv")
        data = load_dataset(str(tmp_path / "t.csv"))
        assert data.feature_names == ("a", "b") and len(data.y_train) == 16


def test_an_index_of_pandas_that_is_called_client_tells_the_clients(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    site, patient = ["north", "south"] * 10, np.arange(20) // 2
    table = pandas.DataFrame({"label": np.arange(20) % 2, "a": np.ones(20), "client": site, "group": patient})
    table.set_index("client").to_parquet(tmp_path / "t.parquet")
    data = load_dataset(str(tmp_path / "t.parquet"))
    assert (data.client_names, data.feature_names) == (("north", "south"), ("a",))
    table.set_index(["group", "label"]).to_parquet(tmp_path / "t.parquet")
    data = load_dataset(str(tmp_path / "t.parquet"))
    assert (data.groups[0], data.classes, data.feature_names) == (10, 2, ("a",))


def test_the_index_of_pandas_is_no_feature_when_it_was_read_and_written_again(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"label": np.arange(20) % 2, "a": np.arange(20) % 3})
    for _ in range(3):
        table.to_csv(tmp_path / "t.csv")
        table = pandas.read_csv(tmp_path / "t.csv")
    assert list(table.columns)[:3] == ["Unnamed: 0.2", "Unnamed: 0.1", "Unnamed: 0"]
    for path in (tmp_path / "t.csv", tmp_path / "t.parquet"):
        table.to_csv(path) if path.suffix == ".csv" else table.to_parquet(path)
        data = load_dataset(str(path))
        assert data.feature_names == ("a",) and data.spec.shape == (1,)
        assert "column Unnamed: 0.1 is left out: pandas calls the index of a table so" in data.notes


@pytest.mark.parametrize(
    ("values", "way"),
    [
        (np.arange(10) * 3 - 7, "rises"),
        (np.arange(10, 0, -1).astype(np.uint8), "falls"),
        (np.arange(10.0), None),  # a measurement
        (np.arange(10) // 2, None),
        (np.roll(np.arange(10), 1), None),
    ],
)
def test_a_column_that_numbers_the_rows_is_told(tmp_path: Path, values: np.ndarray, way: str | None) -> None:
    path = parquet(tmp_path, label=np.arange(10) % 2, visit=values, a=np.ones(10))
    data = load_dataset(str(path))
    assert data.feature_names == ("visit", "a")
    assert [note.split(",")[0] for note in data.notes] == (
        [f"column visit numbers the rows: it {way} with every row"] if way else []
    )
    asked = parse_experiment({"dataset": str(path), "partition": "iid", "clients": 2, "device": "cpu"})
    asked = asked.with_(batch_size=2, min_samples=0)
    assert set(data.notes) <= set(worth_knowing(asked, *resolve(asked)))
    assert set(data.notes) <= set(inspect(asked).advice.warnings)


def test_a_csv_is_a_table_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = [f"{'sick' if i % 2 else 'well'},{i},north" for i in range(10)]
    (tmp_path / "t.csv").write_text("label,age,client\n" + "\n".join(rows) + "\n")
    data = load_dataset(str(tmp_path / "t.csv"))
    assert (data.class_names, data.client_names) == (("sick", "well"), ("north",))
    assert data.feature_names == ("age",) and data.spec.shape == (1,)
    (tmp_path / "t.csv").rename(tmp_path / "T.CSV")  # as other programs may write it
    assert load_dataset(str(tmp_path / "T.CSV")).class_names == ("sick", "well")
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(UserError, match=r"t\.csv: not a readable \.csv file"):
        load_dataset(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("table", "encoding", "message"),
    [
        ("a;label\n1;x\n2;y\n", "utf-8", "seems to be separated by ';'; expected are UTF-8, commas between"),
        ("a;label\n1,5;x\n2,5;y\n", "utf-8", "seems to be separated by ';'"),
        ("a\tlabel\n1\tx\n2\ty\n", "utf-8", "seems to be separated by tabs"),
        ("a,label\n1,x\n2,y\n", "utf-16", "seems to be UTF-16 text; expected are UTF-8"),
        ("a,label\n1,x\n2,y\n", "utf-16-le", "seems to be UTF-16 text"),
        ("größe,label\n1,x\n2,y\n", "cp1252", "line 1 is not UTF-8 text, after 'gr'; expected are UTF-8"),
        ("a,label\n1,x\n2,süß\n", "cp1252", "line 3 is not UTF-8 text"),
        (
            "a, label\n1,x\n2,y\n",
            "utf-8",
            r"lacks a column label; it has a,  label \(did you mean ' label'\?",
        ),
        ("a,Diagnosis\n1,x\n2,y\n", "utf-8", r"has a, Diagnosis \(did you mean 'Diagnosis'\? rename it\)"),
        ("a,Label\n1,x\n2,y\n", "utf-8", r"lacks a column label; it has a, Label \(did you mean 'Label'\?"),
        ("able,Lable\n1,x\n2,y\n", "utf-8", r"it has able, Lable \(did you mean 'Lable'\? rename it\)"),
    ],
)
def test_a_csv_of_another_form_is_told_so(tmp_path: Path, table: str, encoding: str, message: str) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_bytes(table.encode(encoding))
    with pytest.raises(UserError, match=message) as error:
        load_dataset(str(path))
    assert str(error.value).startswith(f"{path}: ") and len(str(error.value).splitlines()) == 1


def test_a_feature_that_is_called_nearly_like_the_clients_is_told(tmp_path: Path) -> None:
    columns = {"label": np.arange(10) % 2, "Client": np.arange(10) % 3, "AGE": np.ones(10)}
    columns |= {"age group": np.ones(10), "bid": np.ones(10)}  # which remind of group and id
    data = load_dataset(str(parquet(tmp_path, **columns)))
    assert data.notes == ("column 'Client' is trained on as any feature (did you mean 'client'?)",)
    assert load_dataset(str(parquet(tmp_path, **columns, client=np.arange(10) % 2))).notes == ()


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("hospital_id", "client"),
        ("Site", "client"),
        ("PatientID", "group"),
        ("clients", "client"),
        ("gruop_id", "group"),
    ],
)
def test_a_feature_that_seems_to_say_who_holds_a_row_is_told(tmp_path: Path, name: str, role: str) -> None:
    columns = {"label": np.arange(10) % 2, name: np.arange(10) % 3, "age": np.arange(10) % 4}
    data = load_dataset(str(parquet(tmp_path, **columns)))
    assert data.notes == (f"column {name!r} is trained on as any feature (did you mean {role!r}?)",)
    assert load_dataset(str(parquet(tmp_path, **columns, **{role: np.arange(10) % 5}))).notes == ()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1.5, -999.0, 2.5, -999.0], "-999 in 4 rows"),
        ([99, 1, 5, 99], "99 in 4 rows"),
        ([99, 1, 60, 99], None),  # a score, perhaps
        ([1.5, -999.0, -990.0, 3.5], None),
        ([1, 2, 3, 4], None),
    ],
)
def test_a_number_that_may_stand_for_a_missing_value_is_told(
    tmp_path: Path, values: list[float], told: str | None
) -> None:
    data = load_dataset(str(parquet(tmp_path, label=np.arange(8) // 4, a=values * 2)))
    assert data.notes == (
        ()
        if told is None
        else (
            f"column a holds {told}, far from its other values: if that stands for a missing value, it is "
            "trained on as a number",
        )
    )


def test_what_samples_are_called_is_never_trained_on(tmp_path: Path) -> None:
    names = ["007", None, "B 3", "1.10", *map(str, range(6))]
    data = load_dataset(str(parquet(tmp_path, label=np.arange(10) % 2, id=names, a=np.ones(10))))
    assert (data.feature_names, data.notes) == (("a",), ())
    data = load_dataset(str(parquet(tmp_path, label=np.arange(10) % 2, ID=np.arange(10), a=np.ones(10))))
    assert data.notes[0] == "column 'ID' is trained on as any feature (did you mean 'id'?)"
    np.savez(tmp_path / "a.npz", x=np.ones((10, 2)), y=np.arange(10) % 2, id=np.arange(10))
    assert load_dataset(str(tmp_path / "a.npz")).notes == ()


@pytest.mark.parametrize("column", ["label", "client"])
def test_a_blank_is_no_name(tmp_path: Path, column: str) -> None:
    pytest.importorskip("pyarrow")
    rows = [f"{name},{i},{name}" for i, name in enumerate(["cat", "dog "] * 10)]
    head = "label,age,client" if column == "label" else "client,age,label"
    (tmp_path / "t.csv").write_text("\n".join([head, *rows, "cat,1,cat", " dog,1,cat"]) + "\n")
    data = load_dataset(str(tmp_path / "t.csv"))
    assert data.class_names == data.client_names == ("cat", "dog")
    (tmp_path / "t.csv").write_text("\n".join([head, *rows, ",1,cat", " ,1,cat"]) + "\n")
    with pytest.raises(UserError, match=f"column {column} lacks a value in 2 rows, first in row 20"):
        load_dataset(str(tmp_path / "t.csv"))


@pytest.mark.parametrize("spelling", ["NA", "nan", "NaN", " NULL", "null", '"N/A"'])
@pytest.mark.parametrize(("column", "what"), [("label", "class"), ("client", "client")])
def test_a_missing_name_is_none_however_it_is_written(
    tmp_path: Path, spelling: str, column: str, what: str
) -> None:
    pytest.importorskip("pyarrow")
    head = "label,age,client" if column == "label" else "client,age,label"
    rows = [f"{i % 2},{i},{i % 2}" for i in range(20)]
    first = "first in row 20"
    for gaps, told in (([spelling] * 2, f"2 rows, {first}"), ([spelling, spelling, ""], f"3 rows, {first}")):
        table = "\n".join([head, *rows, *(f"{gap},1,1" for gap in gaps)])
        (tmp_path / "t.csv").write_text(table + "\n")
        with pytest.raises(UserError) as error:
            load_dataset(str(tmp_path / "t.csv"))
        written = spelling.strip(' "')
        assert str(error.value) == (
            f"{tmp_path / 't.csv'}: column {column} lacks a value in {told}, written '{written}'; "
            f"if that is a real {what}, rename it"
        )


def test_in_a_parquet_a_name_is_what_it_says(tmp_path: Path) -> None:
    assert load_dataset(str(parquet(tmp_path, label=["NA", "EU"] * 5, a=np.ones(10)))).class_names == (
        "EU",
        "NA",
    )


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["0", "1", "2"], ()),
        (["007", "07", "7"], ("007", "07", "7")),
        (["true", "false", "x"], ("false", "true", "x")),
        (["1e5", "b", "c"], ("1e5", "b", "c")),
        ([str(10**30), "1", "2"], ("1", str(10**30), "2")),
    ],
)
def test_a_code_is_a_name_unless_all_are_plain_numbers(
    tmp_path: Path, labels: list[str], names: tuple[str, ...]
) -> None:
    pytest.importorskip("pyarrow")
    rows = [f"{label},{i},{label}" for i in range(5) for label in labels]
    (tmp_path / "t.csv").write_text("\n".join(["label,age,client", *rows]) + "\n")
    data = load_dataset(str(tmp_path / "t.csv"))
    assert data.class_names == data.client_names == names
    assert data.classes == 3


def test_names_that_are_written_nearly_alike_are_told(tmp_path: Path) -> None:
    labels = ["Benign", "benign", "nv", "a", "A", "1", "1.0"] * 3
    clients = ["St_Mary", "St  Mary", "St. John"] * 7
    data = load_dataset(str(parquet(tmp_path, label=labels, client=clients, a=np.arange(21) % 3)))
    assert data.classes == 7
    assert data.notes == (
        "'1' and '1.0' are two classes, though they are called nearly the same (and 1 more): give them "
        "one name if they are one",
        "'St  Mary' and 'St_Mary' are two clients, though they are called nearly the same: give them one "
        "name if they are one",
    )


def test_labels_that_leave_numbers_out_are_told(tmp_path: Path) -> None:
    asked = parse_experiment({"partition": "iid", "clients": 2, "device": "cpu", "batch_size": 2})
    told = "labels count from 0, so that there are 5 classes, of which no sample has the label "
    for labels, missing in (
        ([2, 4], "0, 1, 3: is the highest, 4, a mistake?"),
        ([0, 1, 2, 4], "3: is the highest, 4, a mistake?"),
        ([1, 2, 3, 4], "0: do yours begin at 1?"),
        ([0, 1, 2, 3, 4], None),
    ):
        y = np.resize(labels, 40)
        np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).random((40, 2)), y=y)
        lines = worth_knowing(asked, *resolve(asked.with_(dataset=str(tmp_path / "d.npz"))))
        assert [line for line in lines if "labels count" in line] == ([told + missing] if missing else [])


def test_measurements_are_no_labels(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text("label,age\n0.5,1\n1.25,2\n")
    with pytest.raises(UserError, match="column label must be integers or strings, not"):
        load_dataset(str(tmp_path / "t.csv"))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_whole_numbers_are_integers_however_they_are_written(tmp_path: Path, suffix: str) -> None:
    """pandas makes floats of integers where one was once missing."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    whole = pandas.DataFrame({"label": [0, 1] * 5, "client": [7, 7, 8, 9, 9] * 2, "group": range(10)})
    whole["a"] = np.linspace(0, 1, 10)
    path, told = tmp_path / f"t{suffix}", []
    for table in (whole, whole.astype(float)):
        table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
        told.append(load_dataset(str(path)))
    assert told[0].fingerprint == told[1].fingerprint and told[1].class_names == told[1].client_names == ()
    assert told[0].group_test is not None and told[1].group_test is not None
    assert told[0].group_test.tolist() == told[1].group_test.tolist()


def test_a_databases_decimals_are_numbers(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    doses = [Decimal("0.25"), Decimal("12.50"), Decimal("3.00"), Decimal("7.75")]
    data = load_dataset(str(parquet(tmp_path, label=["a", "b"] * 2, dose=doses)))
    assert sorted(torch.cat([data.x_train, data.x_test]).flatten().tolist()) == [0.25, 3.0, 7.75, 12.5]


def test_columns_have_names_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name, head in (("age", "label,age,age"), ("label", "label,age,label")):
        (tmp_path / "t.csv").write_text(f"{head}\n0,1,2\n1,1,2\n")
        with pytest.raises(UserError, match=f"has 2 columns called {name}"):
            load_dataset(str(tmp_path / "t.csv"))


def test_a_constant_feature_has_no_effect_also_where_it_changes_later(tmp_path: Path) -> None:
    """Its weights were never trained: whatever they are, they must not speak."""
    rng = np.random.default_rng(0)
    columns = {
        "scanner": np.full(40, 5),
        "visit": 20240000000000000 + rng.permutation(40),
        "a": rng.random(40),
    }
    path = parquet(tmp_path, label=np.arange(40) % 2, **columns)
    data = load_dataset(str(path))
    later = torch.tensor([[500.0, 1e15, 0.5]])
    assert data.inputs(later)[0, :2].abs().max() < 1e-9 < data.inputs(later)[0, 2].abs()
    assert data.constant == ["scanner", "visit"]
    asked = parse_experiment({"dataset": str(path), "partition": "iid", "clients": 2, "device": "cpu"})
    asked = asked.with_(batch_size=2, min_samples=0)
    for told in (worth_knowing(asked, *resolve(asked)), inspect(asked).advice.warnings):
        assert (
            "features without effect, since they are the same in all training samples as far as float32 "
            "tells: scanner, visit" in told
        )
        assert asked.algorithm.in_vain(2) in told


def test_labels_and_clients_may_be_names(tmp_path: Path) -> None:
    labels, clients = ["sick", "well"] * 5, ["north"] * 5 + ["east"] * 5
    data = load_dataset(str(parquet(tmp_path, label=labels, client=clients, a=np.arange(10.0))))
    assert data.class_names == ("sick", "well")
    assert data.client_names == ("east", "north")
    assert data.client_train is not None
    for value, y, k in zip(
        data.x_train[:, 0].long().tolist(), data.y_train.tolist(), data.client_train, strict=True
    ):
        assert data.class_names[y] == labels[value]
        assert data.client_names[k] == clients[value]


def test_labels_may_be_categories_or_truths(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow reads parquet: pip install 'fedgela[hub]'")
    categories = pyarrow.array(["b", "a"] * 5).dictionary_encode()
    assert load_dataset(str(parquet(tmp_path, label=categories, a=np.arange(10)))).class_names == ("a", "b")
    blank = pyarrow.array(["b", " "] * 5).dictionary_encode()
    with pytest.raises(UserError, match="column label lacks a value in 5 rows, first in row 1"):
        load_dataset(str(parquet(tmp_path, label=blank, a=np.arange(10))))
    truths = np.arange(10) > 5
    assert load_dataset(str(parquet(tmp_path, label=truths, a=np.arange(10)))).y_test.tolist() == [0, 1]


def test_a_split_column_says_what_is_for_testing(tmp_path: Path) -> None:
    split = ["train", "test", "train", "train"]
    data = load_dataset(str(parquet(tmp_path, label=[0, 1, 1, 0], a=[0.0, 1, 2, 3], split=split)))
    assert data.x_train[:, 0].tolist() == [0, 2, 3]
    assert data.x_test[:, 0].tolist() == [1]


@pytest.mark.parametrize("struct", [False, True])
def test_an_image_column_is_decoded(tmp_path: Path, struct: bool) -> None:
    images: list[Any] = [encoded(level, size=5 + level) for level in range(10)]
    if struct:
        images = [{"bytes": image, "path": None} for image in images]
    data = load_dataset(str(parquet(tmp_path, label=np.arange(10) % 2, image=images)), image_size=12)
    assert data.spec.shape == (1, 12, 12)
    assert data.x_test[:, 0, 0, 0].tolist() == [8, 9]


def test_columns_beside_an_image_are_not_read_and_told(tmp_path: Path) -> None:
    age = [None, *range(9)]  # what nothing reads may be missing
    columns = {"label": np.arange(10) % 2, "image": [encoded(level) for level in range(10)], "age": age}
    path = parquet(tmp_path, **columns, Client=np.arange(10) % 3, group=np.arange(10))
    data = load_dataset(str(path))
    assert (data.feature_names, data.client_train) == ((), None)
    assert data.notes == ("columns beside image that nothing reads: age, Client",)
    with pytest.raises(UserError, match="column label lacks a value in row "):
        load_dataset(str(parquet(tmp_path, **columns | {"label": [None, *[0, 1] * 4, 0]})))


def test_unreadable_images_of_a_file_are_named_by_row(tmp_path: Path) -> None:
    images = [encoded(level) for level in range(10)]
    images[3] = b"nothing"
    path = parquet(tmp_path, label=np.arange(10) % 2, image=images)
    with pytest.raises(UserError, match=r"mine\.parquet: 1 of 10 images cannot be read: row 3"):
        load_dataset(str(path))
    with pytest.warns(UserWarning, match="row 3"):
        data = load_dataset(str(path), unreadable="skip")
    assert len(data.y_train) + len(data.y_test) == 9


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2]}, "lacks a column label; it has a"),
        ({"label": [0, 1]}, "neither a column image nor columns of numbers"),
        (
            {"label": [0, 1], "a": ["x", "y"]},
            "column a is no column of numbers but string, such as 'x'; make numbers, leave them out, or "
            "rename: 'id' is what rows are called, 'group' says which belong together, 'client' who holds",
        ),
        (
            {"label": [0, 1, 0], "a": ["7", "<5", "<5"]},
            r"column a holds '<5' in row 1 \(and 1 more\), which ",
        ),
        ({"label": [0, None], "a": [1, 2]}, "column label lacks a value in row 1"),
        ({"label": ["x", "nan"], "a": [1, 2]}, "column label lacks a value in row 1, written 'nan'"),
        ({"label": [-3, 1], "a": [1, 2]}, "column label holds -3; labels are numbers from 0, or names"),
        (
            {"label": [1, 0.5], "a": [1, 2]},
            "column label must be integers or strings, not float64, such as 0.5 in row 1",
        ),
        ({"label": [0, 1], "a": [1, 2], "client": [0.5, 1]}, "column client must be integers or strings"),
        ({"label": [0, 1], "a": [1, 2], "split": ["train", "val"]}, "must say 'train' or 'test', not 'val'"),
        ({"label": [0, 1], "a": [1, 2], "split": ["test", "test"]}, "says 'test' of every row"),
        (
            {"label": [0, 1], "image": ["a.jpg", "b.jpg"]},
            "not string; image files are read from folders SITE/",
        ),
        ({"label": np.zeros(0, int), "a": np.zeros(0)}, "holds no rows"),
        ({"label": [0, 0, 0, 0], "a": [1, 2, 3, 4]}, "at least 2 classes"),
        ({"label": [0, 1], "a": [1, 2]}, "no class has two samples, of which one is for testing"),
        ({"label": [0, 1], "a": [1, 1e300]}, "column a holds values that are no finite numbers in float32"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_wrong_parquet_is_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = parquet(tmp_path, **columns)
    with pytest.raises(UserError, match=message) as error:
        load_dataset(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value).splitlines()) <= 2


def test_all_columns_that_must_be_mended_are_named_at_once(tmp_path: Path) -> None:
    """A table as it comes from a hospital: an id, a date, words, and cells that are empty."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    head = "patient,seen,sex,lactate,weight,smokes,label\n"
    path.write_text(
        head + "A1,2020-05-01,f,<0.5,60,,ill\nA2,2020-06-01,,1.2,,,well\nA3,2021-01-31,m,2,70,,ill\n"
    )
    with pytest.raises(UserError) as error:
        load_dataset(str(path))
    lacking, strange = str(error.value).splitlines()
    told = "columns that lack values: sex (row 1), weight (row 1), smokes (3 rows, first in row 0)"
    assert lacking == f"{path}: {told}"
    assert strange.startswith(
        "columns that are not of numbers: patient ('A1'), seen ('2020-05-01'), sex ('f'), lactate ('<0.5'); "
        "make numbers"
    )
    many = ",".join(f"gene_{i}" for i in range(100))
    path.write_text(f"{many}\n" + ",".join(["x"] * 100))
    with pytest.raises(UserError, match=r"has gene_0, gene_1, .*gene_9 and 90 more"):
        load_dataset(str(path))


def test_a_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path, label=[0, 1], a=[1, 2])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"mine\.parquet: not a readable \.parquet file"):
        load_dataset(str(path))
