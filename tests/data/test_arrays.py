"""The user's own files: .npz and .parquet."""

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela.config import parse_experiment
from fedgela.data import build_federation, load_dataset
from fedgela.data.npz import keep_npz
from fedgela.data.split import every_fifth, own_tests
from fedgela.errors import UserError
from fedgela.inspection import inspect
from fedgela.notes import worth_knowing
from fedgela.resolve import resolve
from helpers import tiny_dataset

# -- the split of data that comes without --------------------------------------------------------------


def test_every_fifth_of_a_group_is_for_testing() -> None:
    group = np.array([7] * 10 + [3] * 5)
    assert np.flatnonzero(every_fifth(group)).tolist() == [4, 9, 14]


@pytest.mark.parametrize(("n", "test"), [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (9, 1), (10, 2), (104, 20)])
def test_a_group_keeps_at_least_one_of_each_where_it_can(n: int, test: int) -> None:
    assert every_fifth(np.zeros(n, int)).sum() == test


def test_within_a_group_the_second_key_is_stratified() -> None:
    rng = np.random.default_rng(0)
    client, y = rng.integers(0, 3, 3000), rng.integers(0, 4, 3000)
    test = every_fifth(client, then=y)
    for k in range(3):
        for c in range(4):
            cell = (client == k) & (y == c)
            assert abs(test[cell].sum() - cell.sum() / 5) < 1


def test_a_class_of_two_samples_is_learned_and_measured() -> None:
    """Sites of 40 and 13 samples; three of class 1 lie where no fifth of the first site falls."""
    y = np.array([0] * 20 + [1] * 3 + [2] * 17 + [0] * 12 + [3])
    client = np.array([0] * 40 + [1] * 13)
    assert not every_fifth(client, then=y)[y == 1].any()
    test = own_tests(y, client)
    assert np.flatnonzero(test & (y == 1)).tolist() == [22]
    others = y != 1
    assert (test[others] == every_fifth(client, then=y)[others]).all()
    assert not test[y == 3].any()  # a single sample is for training


def test_a_rare_class_is_tested_where_it_is_trained_on() -> None:
    y = np.array([0, 0, 0, 1] + [0, 0, 0, 1, 1] + [0] * 6)
    client = np.repeat([7, 8, 9], [4, 5, 6])
    rotated = np.where(y == 1, -1, y)  # as it sorts first, no fifth falls on it
    test = own_tests(rotated, client)
    assert np.flatnonzero(test & (y == 1)).tolist() == [8]  # of the two of client 8


# -- npz -----------------------------------------------------------------------------------------------


def test_an_npz_of_x_and_y_is_split(tmp_path: Path) -> None:
    x = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(20) % 2)
    data = load_dataset(str(tmp_path / "mine.npz"))
    assert torch.bincount(data.y_test).tolist() == [2, 2]
    assert len(data.y_train) == 16


def test_an_npz_of_x_y_and_client_is_split_within_each_client(tmp_path: Path) -> None:
    client = np.repeat([5, 6, 9], [10, 4, 6])
    np.savez(tmp_path / "mine.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2, client=client)
    data = load_dataset(str(tmp_path / "mine.npz"))
    assert data.kind == "features"
    federation = build_federation(data, "natural", None, 0, seed=0)
    assert federation.train.sizes.tolist() == [8, 3, 5]
    assert federation.test.sizes.tolist() == [2, 1, 1]


def test_names_are_kept(tmp_path: Path) -> None:
    given = {"x": np.zeros((10, 3)), "y": np.arange(10) % 2, "class_names": np.array(["no", "yes"])}
    np.savez(tmp_path / "mine.npz", **given)
    assert load_dataset(str(tmp_path / "mine.npz")).class_names == ("no", "yes")


def test_booleans_are_features(tmp_path: Path) -> None:
    x = np.arange(20).reshape(10, 2) % 3 == 0
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(10) % 2)
    data = load_dataset(str(tmp_path / "mine.npz"))
    assert data.kind == "features"
    assert data.x_test.tolist() == x[8:].astype(float).tolist()  # every fifth of each class


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.arange(9)}, r"y must be one integer a sample of x, not int64 \[9\]"),
        ({"client": np.zeros((10, 2), int)}, "client must be one integer a sample of x"),
        ({"x": np.array(3.0)}, "y must be one integer a sample of x"),
        ({"y": np.full(10, 0.5)}, "y_train must be"),
        ({"class_names": np.arange(2)}, "class_names must be a row of strings"),
        ({"class_names": np.array(["a"])}, "the label 1 has no name among the 1 class_names"),
        ({"class_names": np.array(["a", "b", "a"])}, "two of the class_names are the same"),
        ({"client": np.arange(10) % 3, "client_names": np.array(["a", "b"])}, "among the 2 client_names"),
        (
            {"client": np.arange(10) % 2, "client_names": np.array(["a", "b", "a"])},
            "two of the client_names are",
        ),
        (
            {"clients": np.zeros(10, int)},
            r"an array clients, which nothing reads \(did you mean 'client'\?\)",
        ),
        ({"Client": np.zeros(10, int)}, r"an array Client, .* \(did you mean 'client'\?\)"),
        ({"client_id": np.zeros(10, int)}, r"an array client_id, .* \(did you mean 'client'\?\)"),
        ({"class_name": np.array(["a", "b"])}, r"an array class_name, .* \(did you mean 'class_names'\?\)"),
        (
            {"x": np.full((10, 3), np.nan)},
            "x holds values that are no finite numbers in float32: row 0, column 0 and 29 more",
        ),
        ({"x": np.full((10, 3), -1e300)}, "x holds values that are no finite numbers in float32"),
        ({"x": np.zeros((10, 3), complex)}, r"real numbers \[n, features\], not complex128 \[8, 3\]"),
        ({"x": np.zeros((10, 3), "m8[s]")}, r"real numbers \[n, features\], not timedelta64"),
        ({"x": np.zeros((0, 8, 8), np.uint8), "y": np.zeros(0, int)}, "there are no samples"),
        ({"y": np.arange(10)}, "no class has two samples, of which one is for testing"),
        ({"client": np.arange(10)}, "no client has two samples, of which one is for testing"),
    ],
)
@pytest.mark.filterwarnings("error")  # a number too large for float32 is told once, by us
def test_a_wrong_npz_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **({"x": np.zeros((10, 3)), "y": np.arange(10) % 2} | changes))
    with pytest.raises(UserError, match=message) as error:
        load_dataset(str(path))
    assert str(error.value).startswith(f"{path}: ")


def test_arrays_that_nothing_reads_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    given = {"x": np.zeros((10, 3)), "y": np.arange(10) % 2, "client": np.arange(10) % 2}
    np.savez(path, **given)
    assert load_dataset(str(path)).notes == ()
    np.savez(path, **given, client_age=np.zeros(2), z_train=np.zeros(10))  # clients are there: no misspelling
    told = ("arrays of the file that nothing reads: client_age, z_train",)
    assert load_dataset(str(path)).notes == told
    asked = parse_experiment({"dataset": str(path), "device": "cpu", "batch_size": 2})
    assert set(told) <= set(worth_knowing(asked, *resolve(asked)))
    assert set(told) <= set(inspect(asked).advice.warnings)


def test_an_inspection_tells_that_natural_clients_have_no_least_size(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.zeros((10, 3)), y=np.arange(10) % 2, client=np.arange(10) % 2)
    asked = parse_experiment({"dataset": str(path), "device": "cpu", "batch_size": 2, "min_samples": 50})
    told = "min_samples = 50 does nothing: it is for dirichlet, and natural leaves a client with 4"
    assert told in inspect(asked).advice.warnings
    assert told not in inspect(asked.with_(min_samples=None)).advice.warnings


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    class Unwritable:
        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        keep_npz(tmp_path / "a.npz", {"x": np.zeros(3), "y": Unwritable()})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("asked", "found"), [("my-set", "my_set"), ("my_set", "my-set")])
def test_names_with_hyphens_and_underscores_are_alike(tmp_path: Path, asked: str, found: str) -> None:
    np.savez(tmp_path / f"{found}.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    assert load_dataset(asked, str(tmp_path)).name == asked


def test_a_size_that_the_file_has_not_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 8, 8), np.uint8), y=np.arange(10) % 2)
    assert load_dataset(str(tmp_path / "mine.npz"), image_size=8).spec.shape == (1, 8, 8)
    with pytest.raises(UserError, match=r"image_size: only .* are resized; .* has image of shape 1x8x8"):
        load_dataset(str(tmp_path / "mine.npz"), image_size=9)
    np.savez(tmp_path / "table.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    with pytest.raises(UserError, match=r"image_size: only .* are resized; .* has features of shape 3"):
        load_dataset(str(tmp_path / "table.npz"), image_size=9)


def test_only_images_are_augmented(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    with pytest.raises(UserError, match="augment: only images"):
        load_dataset(str(tmp_path / "mine.npz"), augment=True)


def test_strings_are_told_how_to_become_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 3)), y=["a", "b"] * 5)
    with pytest.raises(UserError, match=r"class_names, y = np\.unique\(y, return_inverse=True\)"):
        load_dataset(str(tmp_path / "mine.npz"))


# -- parquet -------------------------------------------------------------------------------------------


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


def test_what_float32_cannot_tell_apart_is_constant(tmp_path: Path) -> None:
    """Milliseconds since 1970 on one morning: what is lost of them must not come as large numbers."""
    rng = np.random.default_rng(0)
    x = np.stack([1.7e12 + rng.uniform(0, 1.2e6, 40), rng.normal(size=40)], axis=1)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(40) % 2)
    data = load_dataset(str(tmp_path / "d.npz"))
    assert data.inputs(data.x_train)[:, 0].abs().max() < 1e-5


def test_large_numbers_that_are_close_together_keep_their_digits(tmp_path: Path) -> None:
    """Numbers of files, counted on for years: float32 has each of them, and so should their differences."""
    x = 10_000_000.0 + 2 * np.arange(40)[:, None]
    np.savez(tmp_path / "d.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x[:4], y_test=[0, 1, 0, 1])
    data = load_dataset(str(tmp_path / "d.npz"))
    exact = torch.from_numpy((x - x.mean()) / x.std()).float()
    torch.testing.assert_close(data.inputs(data.x_train), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("unit", [1e-9, 1e-25, 1e20])
def test_a_feature_varies_or_is_constant_in_whatever_unit(tmp_path: Path, unit: float) -> None:
    """Concentrations in mol/l are all nearly 0, and tell as much as the same in nmol/l."""
    rng = np.random.default_rng(0)
    x = unit * np.stack([rng.normal(1, 2, 40), np.full(40, 0.1)], axis=1)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(40) % 2)
    data = load_dataset(str(tmp_path / "d.npz"))
    assert data.constant == ["1"]
    inputs = data.inputs(data.x_train)
    torch.testing.assert_close(inputs[:, 0].std(correction=0), torch.tensor(1.0))
    assert inputs[:, 1].abs().max() < 1e-5


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


def test_clients_of_a_file_that_is_split_have_two_names(tmp_path: Path) -> None:
    x, y = np.ones((4, 2)), [0, 1] * 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, client=y)
    with pytest.raises(UserError, match="client_train and client_test"):
        load_dataset(str(tmp_path / "d.npz"))


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


def test_channels_first_is_noticed(tmp_path: Path) -> None:
    x, y = np.zeros((8, 3, 16, 16), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "first.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UserError, match="channels first"):
        load_dataset(str(tmp_path / "first.npz"))


def test_numpys_advice_to_load_unsafely_is_not_passed_on(tmp_path: Path) -> None:
    text, objects = tmp_path / "text.npz", tmp_path / "objects.npz"
    text.write_text("no archive")
    y = np.array([0, 1, None], dtype=object)
    np.savez(objects, x_train=np.zeros((3, 2)), y_train=y, x_test=np.zeros((3, 2)), y_test=y)
    for path, why in ((text, "no zip archive"), (objects, "Python objects")):
        with pytest.raises(UserError, match=why) as caught:
            load_dataset(str(path))
        assert "pickle" not in str(caught.value)


def test_a_file_of_another_kind_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.xlsx").write_text("1,2\n")
    for name in ("data.xlsx", "./data.xlsx", str(tmp_path / "data.xlsx")):
        with pytest.raises(UserError) as error:
            load_dataset(name)
        assert str(error.value) == f"dataset: {name} is neither a folder nor an .npz, .parquet or .csv file"


def test_the_datas_own_clients_are_taken_unless_told_otherwise(tmp_path: Path) -> None:
    x, y, client = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3, np.arange(60) // 20
    path = tmp_path / "sites.npz"
    np.savez(path, x=x, y=y, client=client)
    for asked, found in (({}, "natural"), ({"partition": "iid", "clients": 2, "min_samples": 1}, "iid")):
        experiment, federation = resolve(parse_experiment({"dataset": str(path), "device": "cpu", **asked}))
        assert experiment.partition == found and federation.clients == (3 if found == "natural" else 2)
    np.savez(path, x=x, y=y)
    experiment, _ = resolve(
        parse_experiment({"dataset": str(path), "clients": 2, "min_samples": 1, "device": "cpu"})
    )
    assert experiment.partition == "dirichlet:0.1"


def test_a_device_without_room_for_the_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_dataset()

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(UserError, match="cpu: out of memory for the data set's 0 MB"):
        data.to(torch.device("cpu"))
