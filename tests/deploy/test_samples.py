"""Samples to be predicted, from wherever they come; what does not fit the model is refused in a line."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgela.data import load_dataset
from fedgela.deploy.samples import read_samples
from fedgela.errors import UserError
from fedgela.inputs import InputSpec

GREY, COLOUR = InputSpec("image", (1, 8, 8)), InputSpec("image", (3, 8, 8))
FEATURES, TOKENS = InputSpec("features", (3,)), InputSpec("tokens", (4,), 10)
CLASSES = ("cat", "dog")


def save(path: Path, colour: tuple[int, ...], size: int = 16) -> Path:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new(
        "RGB" if len(colour) == 3 else "L", (size, size), colour if len(colour) > 1 else colour[0]
    ).save(path)
    return path


def test_images_get_the_models_size_and_channels(tmp_path: Path) -> None:
    red = save(tmp_path / "red.png", (255, 0, 0))
    assert read_samples(red, COLOUR, CLASSES).x[0, :, 0, 0].tolist() == [255, 0, 0]
    grey = read_samples(red, GREY, CLASSES)
    assert grey.x.shape == (1, 1, 8, 8)
    assert int(grey.x[0, 0, 0, 0]) == 76  # ITU-R 601's luma of red
    assert read_samples(save(tmp_path / "grey.png", (9,)), COLOUR, CLASSES).x[0, :, 3, 3].tolist() == [9] * 3


@pytest.mark.parametrize("spec", [GREY, COLOUR])
def test_the_docs_prepare_images_as_predict_does(tmp_path: Path, spec: InputSpec) -> None:
    image = pytest.importorskip("PIL.Image")
    photo = image.fromarray(np.random.default_rng(0).integers(256, size=(60, 90, 3), dtype=np.uint8))
    turned = image.Exif()
    turned[0x0112] = 6
    photo.save(tmp_path / "turned.jpg", exif=turned)
    for mode in ("RGB", "RGBA", "P", "L", "LA", "1"):
        photo.convert(mode).save(tmp_path / f"{mode}.png")
    docs = Path(__file__).parents[2] / "docs" / "deploying.md"
    (code,) = [part for part in docs.read_text().split("```") if "def prepared(" in part]
    names: dict[str, Any] = {}
    exec(code.removeprefix("python").partition("images = ")[0], names)
    found = read_samples(tmp_path, spec, CLASSES)
    for name, x in zip(found.names, found.x, strict=True):
        np.testing.assert_array_equal(names["prepared"](tmp_path / name, *spec.shape), x, name)


def test_a_folders_classes_are_labels_where_all_are(tmp_path: Path) -> None:
    save(tmp_path / "in/b/dog/2.png", (1,))
    save(tmp_path / "in/a/cat/1.png", (2,))
    (tmp_path / "in/notes.txt").write_text("no image")
    found = read_samples(tmp_path / "in", GREY, CLASSES)
    assert (found.names, found.labels) == (["a/cat/1.png", "b/dog/2.png"], ["cat", "dog"])
    assert found.x[:, 0, 0, 0].tolist() == [2, 1]
    save(tmp_path / "in/unsorted/3.png", (3,))
    with pytest.warns(UserWarning, match="the folder 'unsorted' is none of the model's classes"):
        assert read_samples(tmp_path / "in", GREY, CLASSES).labels is None


def test_unreadable_images_are_named_or_left_out(tmp_path: Path) -> None:
    save(tmp_path / "good.png", (1,))
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"bad\.png"):
        read_samples(tmp_path, GREY, CLASSES)
    with pytest.warns(UserWarning, match=r"bad\.png"):
        assert read_samples(tmp_path, GREY, CLASSES, unreadable="skip").names == ["good.png"]


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((2, 8, 8, 3), dtype=np.uint8), y=[1, 0])
    found = read_samples(path, COLOUR, CLASSES)
    assert (found.x.shape, found.labels, found.names) == ((2, 3, 8, 8), ["dog", "cat"], ["0", "1"])
    np.savez(path, x_train=np.ones((5, 3)), x_test=np.array([[1, 2, 3]]))
    assert read_samples(path, FEATURES, CLASSES).x.tolist() == [[1, 2, 3]]
    np.savez(path, x=[[0, 9, 1, 2]], y=["dog"])
    assert read_samples(path, TOKENS, CLASSES).labels == ["dog"]


def test_words_where_the_model_takes_numbers_are_no_column_to_leave_out(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,m\n4,5,f\n")
    with pytest.raises(UserError, match=r"column c is no column of numbers but string, such as 'm'$"):
        read_samples(tmp_path / "t.csv", FEATURES, CLASSES, ("a", "b", "c"))


def test_a_table_need_not_have_labels(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": [1.0, 2.0], "b": [3, 4], "c": [5, 6]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = read_samples(tmp_path / "t.parquet", FEATURES, CLASSES)
    assert (found.x.tolist(), found.labels) == ([[1, 3, 5], [2, 4, 6]], None)
    parquet.write_table(pyarrow.table({**columns, "label": ["cat", "dog"]}), tmp_path / "t.parquet")
    assert read_samples(tmp_path / "t.parquet", FEATURES, CLASSES).labels == ["cat", "dog"]
    picture = save(tmp_path / "p.png", (7,)).read_bytes()
    parquet.write_table(pyarrow.table({"image": [picture]}), tmp_path / "t.parquet")
    assert read_samples(tmp_path / "t.parquet", GREY, CLASSES).x.shape == (1, 1, 8, 8)


@pytest.mark.parametrize("labels", [[1, None, 0], ["cat", None, "dog"], ["cat", " ", "dog"]])
def test_a_missing_label_is_told_by_its_row(tmp_path: Path, labels: list[int | str | None]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {name: [1.0, 2.0, 3.0] for name in "abc"} | {"split": ["train", "test", "test"]}
    table = pyarrow.table({**columns, "label": labels})
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.warns(UserWarning, match="column label lacks a value in row 1: how many answers are right"):
        found = read_samples(tmp_path / "t.parquet", FEATURES, CLASSES)
    assert (found.names, found.labels) == (["1", "2"], None)


def test_columns_are_taken_by_their_names(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("patient,c,a,b\n77,3,1,2\n")
    assert read_samples(path, FEATURES, CLASSES, ("a", "b", "c")).x.tolist() == [[1, 2, 3]]
    path = path.rename(tmp_path / "T.CSV")
    assert read_samples(path, FEATURES, CLASSES, ("a", "b", "c")).x.tolist() == [[1, 2, 3]]
    with pytest.raises(UserError, match="lacks the column d"):
        read_samples(path, FEATURES, CLASSES, ("a", "b", "d"))


def test_samples_are_called_by_their_ids(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("id,a,b,c,split\n007,1,2,3,test\n1.10,4,5,6,train\nNA,7,8,9,test\n")
    found = read_samples(path, FEATURES, CLASSES)  # as they are written, and no feature
    assert (found.names, found.x.tolist()) == (["007", "NA"], [[1, 2, 3], [7, 8, 9]])
    path.write_text("id,a,b,c\n,1,2,3\nB,4,5,6\n")
    with pytest.raises(UserError, match="column id lacks a value in row 0"):
        read_samples(path, FEATURES, CLASSES)
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((2, 3)), id=["B-1", "B-2"])
    assert read_samples(path, FEATURES, CLASSES).names == ["B-1", "B-2"]
    np.savez(path, x_test=np.zeros((2, 3)), x_train=np.zeros((1, 3)), id_train=[9], id_test=[31, 30])
    assert read_samples(path, FEATURES, CLASSES).names == ["31", "30"]
    np.savez(path, x=np.zeros((2, 3)), id=["B-1"])
    with pytest.raises(UserError, match=r"there must be one id a sample, 2, not \[1\]"):
        read_samples(path, FEATURES, CLASSES)


def test_an_index_of_pandas_that_is_called_id_calls_samples(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"id": ["B-1", "B-2"], "a": [1, 4], "b": [2, 5], "c": [3, 6]}).set_index("id")
    table.to_parquet(tmp_path / "t.parquet")
    found = read_samples(tmp_path / "t.parquet", FEATURES, CLASSES)
    assert (found.names, found.x.tolist()) == (["B-1", "B-2"], [[1, 2, 3], [4, 5, 6]])


def test_of_a_table_with_a_split_the_test_rows_are_taken(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,split,label\n1,2,3,train,cat\n4,5,6,test,dog\n")
    found = read_samples(path, FEATURES, CLASSES)
    assert (found.names, found.x.tolist(), found.labels) == (["1"], [[4, 5, 6]], ["dog"])


def test_a_files_own_class_names_say_what_its_labels_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 3)), y=[0, 1, 1], class_names=["dog", "cat"])
    assert read_samples(tmp_path / "a.npz", FEATURES, CLASSES).labels == ["dog", "cat", "cat"]
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 3)), y=[0], class_names=["cow"])
    with pytest.warns(UserWarning, match="the label 'cow' is none of the model's classes"):
        assert read_samples(tmp_path / "a.npz", FEATURES, CLASSES).labels is None


@pytest.mark.parametrize("strange", [2, -1])
def test_samples_of_a_number_that_is_no_class_are_predicted_all_the_same(
    tmp_path: Path, strange: int
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=[0, strange])
    with pytest.warns(UserWarning, match=f"the label {strange} is none of the places of the model's classes"):
        found = read_samples(tmp_path / "a.npz", FEATURES, CLASSES)
    assert (len(found.x), found.labels) == (2, None)


def test_numbers_of_classes_with_names_are_told_what_they_are_taken_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=[1, 0])
    with pytest.warns(UserWarning, match="by place: 0 for cat, 1 for dog$"):
        assert read_samples(tmp_path / "a.npz", FEATURES, CLASSES).labels == ["dog", "cat"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_samples(tmp_path / "a.npz", FEATURES, ("0", "1")).labels == ["1", "0"]


def test_of_texts_the_test_windows_are_taken(tmp_path: Path) -> None:
    said = np.frombuffer(b"to be 1, or not to be 2, that is the question. " * 12, dtype=np.uint8)
    np.savez(tmp_path / "play.npz", text=said, offset=[0, len(said)], role=["HAMLET"])
    data = load_dataset(str(tmp_path / "play.npz"))
    found = read_samples(tmp_path / "play.npz", data.spec, data.class_names)
    assert found.x.tolist() == data.x_test.tolist()
    assert found.labels == [data.class_names[y] for y in data.y_test.tolist()]


def test_numbers_are_names_where_the_model_has_classes_called_by_numbers(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    grades = ("1", "2", "2a", "3")
    table = tmp_path / "t.csv"
    table.write_text("a,b,c,label\n1,2,3,1\n4,5,6,2\n7,8,9,3\n")
    assert read_samples(table, FEATURES, grades).labels == ["1", "2", "3"]
    table.write_text("a,b,c,label\n1,2,3,1.0\n4,5,6,3.0\n")
    assert read_samples(table, FEATURES, grades).labels == ["1", "3"]
    table.write_text("a,b,c,label\n1,2,3,4\n")
    with pytest.warns(UserWarning, match="the label 4 is none of the classes"):
        assert read_samples(table, FEATURES, grades).labels is None
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=[0, 1])
    with pytest.warns(UserWarning, match="the label 1 may be the class called 1 or the class at that place"):
        assert read_samples(tmp_path / "a.npz", FEATURES, grades).labels is None
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=[0, 1], class_names=["3", "2a"])
    assert read_samples(tmp_path / "a.npz", FEATURES, grades).labels == ["3", "2a"]


@pytest.mark.parametrize(
    ("arrays", "spec", "said"),
    [
        ({"z": [1]}, GREY, "has neither x nor x_test; it holds z"),
        (
            {"x": np.zeros((2, 9, 9), dtype=np.uint8)},
            GREY,
            "samples of shape 1x9x9; the model takes image of",
        ),
        ({"x": np.zeros((2, 8, 8))}, GREY, "x must be uint8 images"),
        ({"x": np.zeros((2, 4))}, FEATURES, "samples of shape 4"),
        ({"x": [[np.nan, 0, 0]]}, FEATURES, "no finite numbers"),
        ({"x": [["a", "b", "c"]]}, FEATURES, "must be numbers"),
        ({"x": [[0, 1, 2, 10]]}, TOKENS, "integers from 0 to 9"),
        ({"x": np.zeros((0, 3))}, FEATURES, "holds no samples"),
        ({"x": np.zeros((2, 3)), "y": [0]}, FEATURES, "one label a sample"),
        (
            {"x": np.zeros((1, 3)), "y": [2], "class_names": ["dog", "cat"]},
            FEATURES,
            "labels must be from 0 to 1, the file's class_names",
        ),
    ],
)
def test_what_does_not_fit(tmp_path: Path, arrays: dict[str, object], spec: InputSpec, said: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=said) as error:
        read_samples(tmp_path / "a.npz", spec, CLASSES)
    assert str(error.value).startswith(str(tmp_path / "a.npz"))


def test_image_files_need_a_model_of_squares(tmp_path: Path) -> None:
    picture = save(tmp_path / "p.png", (1,))
    with pytest.raises(UserError, match="takes features of shape 3, no image files"):
        read_samples(picture, FEATURES, CLASSES)
    with pytest.raises(UserError, match="made squares"):
        read_samples(picture, InputSpec("image", (3, 8, 9)), CLASSES)
    with pytest.raises(UserError, match="there is no such file or folder"):
        read_samples(tmp_path / "none", GREY, CLASSES)
    (tmp_path / "notes.md").write_text("no image")
    with pytest.raises(UserError, match=r"notes.md: is no image"):
        read_samples(tmp_path / "notes.md", GREY, CLASSES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        read_samples(tmp_path / "empty", GREY, CLASSES)


def test_a_folder_is_read_as_for_training(tmp_path: Path) -> None:
    """Hidden folders are passed over, links keep the names they have here, and circles end."""
    there = save(tmp_path / "store/1.png", (1,))
    save(tmp_path / "in/.checkpoints/1.png", (2,))
    (tmp_path / "in/cat").mkdir(parents=True)
    (tmp_path / "in/cat/1.png").symlink_to(there)
    (tmp_path / "in/cat/again").symlink_to(tmp_path / "in", target_is_directory=True)
    found = read_samples(tmp_path / "in", GREY, CLASSES)
    assert (found.names, found.labels) == (["cat/1.png"], ["cat"])


def test_only_cells_of_the_models_columns_must_be_there(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,comment\n1,2,3,\n4,5,6,late\n")
    assert read_samples(path, FEATURES, CLASSES, ("a", "b", "c")).x.tolist() == [[1, 2, 3], [4, 5, 6]]
    path.write_text("a,b,c\n1,2,3\n4,,6\n")
    with pytest.raises(UserError, match=r"column b lacks a value in row 1$"):
        read_samples(path, FEATURES, CLASSES, ("a", "b", "c"))
    path.write_text("a,b,c,split\n1,2,3,test\n4,,6,train\n7,,x,test\n")  # rows are told as the file has them
    with pytest.raises(UserError, match=r"b lacks a value in row 2\ncolumn c holds 'x' in row 2, which"):
        read_samples(path, FEATURES, CLASSES, ("a", "b", "c"))


def test_a_damaged_image_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    picture = save(tmp_path / "p.png", (7,)).read_bytes()
    columns = {"image": [picture, picture, b"damaged"], "split": ["train", "train", "test"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="row 2"):
        read_samples(tmp_path / "t.parquet", GREY, CLASSES)


def test_what_the_model_takes_comes_before_labels(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text("a,label\n1,cow\n")
    with pytest.raises(UserError, match="has no column image, and the model takes image of shape 1x8x8"):
        read_samples(tmp_path / "t.csv", GREY, CLASSES)


def test_rows_without_a_label_are_predicted_all_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text("a,b,c,label\n1,2,3,cat\n4,5,6,\n")
    with pytest.warns(UserWarning, match="how many answers are right is not told"):
        found = read_samples(tmp_path / "t.csv", FEATURES, CLASSES)
    assert (len(found.x), found.labels) == (2, None)
