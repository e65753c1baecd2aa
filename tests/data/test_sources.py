import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgela.data import load_dataset
from fedgela.data.arrays import make_dataset
from fedgela.data.sources import data_directory
from fedgela.errors import UserError
from helpers import tiny_arrays, tiny_dataset


def arrays(n_train: int = 12, n_test: int = 6, shape: tuple[int, ...] = (8, 8)) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (n_train, *shape), dtype=np.uint8),
        "y_train": np.arange(n_train) % 3,
        "x_test": rng.integers(0, 256, (n_test, *shape), dtype=np.uint8),
        "y_test": np.arange(n_test) % 3,
    }


def saved(folder: Path, name: str = "toy", **changes: Any) -> Path:
    """An .npz file; a change to None leaves a key out."""
    held = {key: value for key, value in {**arrays(), **changes}.items() if value is not None}
    np.savez(folder / f"{name}.npz", **held)
    return folder / f"{name}.npz"


# -- digits --------------------------------------------------------------------------------------------


def test_digits_are_1797_small_images_of_ten_classes() -> None:
    data = load_dataset("digits")
    assert len(data.y_train) + len(data.y_test) == 1797
    assert data.spec.shape == (1, 8, 8)
    assert data.x_train.dtype == data.x_test.dtype == torch.uint8
    assert data.x_train.max() == 255  # 16 grey levels over the whole range
    assert data.classes == 10
    train, test = torch.bincount(data.y_train), torch.bincount(data.y_test)
    assert len(train) == len(test) == 10
    assert ((test / (train + test) - 0.2).abs() < 0.01).all()  # every fifth sample of every class


def test_digits_are_the_same_every_time() -> None:
    first, again = load_dataset("digits"), load_dataset("digits")
    assert torch.equal(first.x_train, again.x_train)
    assert torch.equal(first.y_train, again.y_train)
    assert torch.equal(first.x_test, again.x_test)


# -- npz files -----------------------------------------------------------------------------------------


def test_grey_images_get_a_channel(tmp_path: Path) -> None:
    given = arrays()
    data = load_dataset(str(saved(tmp_path)))
    assert data.name == "toy"
    assert data.classes == 3
    assert data.spec.shape == (1, 8, 8)
    assert (data.x_train[:, 0].numpy() == given["x_train"]).all()
    assert (data.x_test[:, 0].numpy() == given["x_test"]).all()
    assert data.y_train.tolist() == given["y_train"].tolist()
    assert data.y_test.dtype == torch.int64
    assert data.client_train is None


def test_colour_images_get_channels_first(tmp_path: Path) -> None:
    given = arrays(shape=(6, 5, 3))
    data = load_dataset(str(saved(tmp_path, **given)))
    assert data.spec.shape == (3, 6, 5)
    assert (data.x_train.permute(0, 2, 3, 1).numpy() == given["x_train"]).all()


def test_client_ids_are_kept(tmp_path: Path) -> None:
    ids = np.arange(12) // 4 + 100
    data = load_dataset(str(saved(tmp_path, client_train=ids, client_test=ids[:6])))
    assert data.client_train is not None
    assert data.client_train.tolist() == ids.tolist()


def test_labels_of_any_integer_type_are_taken(tmp_path: Path) -> None:
    labels = {"y_train": np.arange(12, dtype=np.uint8) % 3, "y_test": np.arange(6, dtype=np.int16) % 3}
    assert load_dataset(str(saved(tmp_path, **labels))).y_train.dtype == torch.int64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "lacks y_test; it holds x_train, y_train, x_test"),
        ({"x_train": None, "y_train": None}, "lacks x_train, y_train; it holds"),
        (
            dict.fromkeys(("x_train", "y_train", "x_test", "y_test")),
            r"lacks x_train, y_train, x_test, y_test \(or x and y instead\); it holds nothing",
        ),
        ({"x_train": np.zeros((12, 8, 8))}, r"x_train must be uint8 images .* not float64 \[12, 8, 8\]"),
        ({"x_test": np.zeros((6, 64), np.uint8)}, r"x_test must be uint8 images .* not uint8 \[6, 64\]"),
        ({"x_train": np.zeros((2, 2, 2, 2, 2), np.uint8)}, r"x_train must be .* \[2, 2, 2, 2, 2\]"),
        ({"y_train": np.zeros(12)}, r"y_train must be 12 integers.* not float64 \[12\]"),
        ({"y_train": np.zeros(12, bool)}, "y_train must be 12 integers"),
        ({"y_train": np.zeros(11, int)}, r"y_train must be 12 integers.* \[11\]"),
        ({"y_test": np.zeros((6, 1), int)}, r"y_test must be 6 integers.* \[6, 1\]"),
        ({"y_train": np.arange(12) - 1}, "y_train holds the label -1; labels start at 0"),
        ({"y_test": np.arange(6) - 2}, "y_test holds the label -2"),
        ({"y_train": np.zeros(12, int), "y_test": np.zeros(6, int)}, "at least 2 classes"),
        ({"y_train": np.full(12, 10**12)}, "label 1000000000000 is larger than the number of samples"),
        ({"x_test": np.zeros((6, 8, 9), np.uint8)}, "train and test samples differ in shape"),
        ({"x_test": np.zeros((0, 8, 8), np.uint8), "y_test": np.zeros(0, int)}, "x_test holds no samples"),
        ({"client_train": np.zeros(12, int)}, "for train and test, or for neither"),
        ({"client_train": np.zeros(3, int), "client_test": np.zeros(6, int)}, "client_train must be 12"),
        ({"x_train": np.array([None, "pickle"], dtype=object)}, "not a readable .npz file"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path, **changes)
    with pytest.raises(UserError, match=message) as error:
        load_dataset(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value).splitlines()) <= 2


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_file_is_an_error(tmp_path: Path, kept: float) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(UserError, match=r"toy\.npz: not a readable \.npz file"):
        load_dataset(str(path))


def test_a_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("these are not the images")
    with pytest.raises(UserError, match="not a readable"):
        load_dataset(str(tmp_path / "text.npz"))


def test_an_npy_file_under_the_name_of_an_npz_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(UserError, match="not a readable"):
        load_dataset(str(tmp_path / "one.npz"))


def test_flipped_bits_in_a_compressed_file_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bits.npz"
    np.savez_compressed(path, **arrays())
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), 61):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x5A]) + content[place + 1 :])
        try:
            load_dataset(str(path))  # some bits (dates, attributes) say nothing about the arrays
        except UserError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("shape", [(8, 8, 0), (0, 8)])
def test_images_without_pixels_are_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = saved(tmp_path, **arrays(shape=shape))
    with pytest.raises(UserError):
        load_dataset(str(path))


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"there is no file .*nothing\.npz$"):
        load_dataset(str(tmp_path / "nothing.npz"))
    monkeypatch.chdir(tmp_path)  # a config may lie elsewhere
    with pytest.raises(UserError, match=rf"there is no file nothing\.npz in {tmp_path}, where the command"):
        load_dataset("nothing.npz")


# -- where data is looked for --------------------------------------------------------------------------


def test_data_dir_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, n in ((here, 3), (there, 4)):
        folder.mkdir()
        saved(folder, "mine", y_train=np.arange(12) % n)
    monkeypatch.setenv("FEDGELA_DATA", str(there))
    assert load_dataset("mine").classes == 4
    assert load_dataset("mine", data_dir=str(here)).classes == 3
    assert load_dataset("mine").name == "mine"


def test_the_users_cache_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGELA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_directory(None) == tmp_path / "fedgela"
    monkeypatch.setenv("FEDGELA_DATA", "")  # which says nothing
    assert data_directory(None) == tmp_path / "fedgela"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_directory(None) == Path("~/.cache/fedgela").expanduser()


def test_an_unknown_name_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGELA_DATA", str(tmp_path / "env"))
    with pytest.raises(UserError) as error:
        load_dataset("digit")
    assert f"looked for digit.npz in {tmp_path / 'env'}" in str(error.value)
    assert "did you mean 'digits'" in str(error.value)
    assert "x_train" in str(error.value)  # and what such a file would hold
    assert len(str(error.value).splitlines()) == 2
    with pytest.raises(UserError, match=str(tmp_path / "given")):
        load_dataset("digit", data_dir=str(tmp_path / "given"))


# -- normalise -----------------------------------------------------------------------------------------


def test_normalised_training_images_have_mean_0_and_std_1_by_channel() -> None:
    rng = np.random.default_rng(0)
    channels = [rng.integers(low, high, (50, 6, 5)) for low, high in ((0, 256), (100, 110), (250, 256))]
    x = np.stack(channels, axis=-1).astype(np.uint8)
    y = np.arange(50) % 2
    data = make_dataset("colours", x, y, x[:10], y[:10])
    z = data.inputs(data.x_train)
    assert z.dtype == torch.float32
    assert z.shape == (50, 3, 6, 5)
    torch.testing.assert_close(z.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(z.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_statistics_are_of_training_images_only() -> None:
    given = arrays()
    data = make_dataset("a", **given)
    other = make_dataset("b", **{**given, "x_test": 255 - given["x_test"]})
    assert torch.equal(data.statistics[0], other.statistics[0])
    assert torch.equal(data.statistics[1], other.statistics[1])
    assert data.statistics[0].item() == pytest.approx(given["x_train"].mean() / 255, rel=1e-6)
    assert data.statistics[1].item() == pytest.approx(given["x_train"].std() / 255, rel=1e-6)


@pytest.mark.parametrize("level", [0, 77, 255])
def test_a_constant_channel_is_finite(level: int) -> None:
    x = np.full((10, 4, 4), level, np.uint8)
    y = np.arange(10) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = make_dataset("flat", x, y, x, y)
    z = data.inputs(data.x_train)
    assert z.isfinite().all()
    assert z.abs().max() < 0.2


def test_a_label_beyond_a_known_data_sets_classes_is_named(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    arrays["y_test"][7] = 11
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(
        UserError, match=r"cifar10\.npz: y_test\[7\] is 11, but cifar10 has the classes 0 to 9"
    ):
        load_dataset("cifar10", str(tmp_path))


@pytest.mark.parametrize(("there", "lacking"), [("x", "y"), ("y", "x")])
def test_samples_without_labels_are_told_so(tmp_path: Path, there: str, lacking: str) -> None:
    np.savez(tmp_path / "a.npz", **{there: np.zeros(3)})
    with pytest.raises(UserError, match=f"a.npz: has {there}, but lacks {lacking}"):
        load_dataset(str(tmp_path / "a.npz"))


def test_a_file_of_another_kind_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.xlsx").write_text("1,2\n")
    for name in ("data.xlsx", "./data.xlsx", str(tmp_path / "data.xlsx")):
        with pytest.raises(UserError) as error:
            load_dataset(name)
        assert str(error.value) == f"dataset: {name} is neither a folder nor an .npz, .parquet or .csv file"


def test_a_device_without_room_for_the_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_dataset()

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(UserError, match="cpu: out of memory for the data set's 0 MB"):
        data.to(torch.device("cpu"))
