"""The user's own .npz files, and what of features holds for every file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela.config import parse_experiment
from fedgela.data import build_federation, load_dataset
from fedgela.data.npz import keep_npz
from fedgela.errors import UserError
from fedgela.inspection import inspect
from fedgela.notes import worth_knowing
from fedgela.resolve import resolve


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


def test_clients_of_a_file_that_is_split_have_two_names(tmp_path: Path) -> None:
    x, y = np.ones((4, 2)), [0, 1] * 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, client=y)
    with pytest.raises(UserError, match="client_train and client_test"):
        load_dataset(str(tmp_path / "d.npz"))


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
