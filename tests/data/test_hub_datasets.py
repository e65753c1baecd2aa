"""The hub, tested on local folders with the layout and the columns of the hub's own repositories."""

import hashlib
import io
import string
from pathlib import Path

import numpy as np
import pytest

from fedgela.data import build_federation, load_dataset
from fedgela.data.text import LETTERS
from fedgela.errors import UserError

datasets = pytest.importorskip("datasets", reason="`datasets` reads the hub: pip install 'fedgela[hub]'")
Image = pytest.importorskip("PIL.Image", reason="images are read with Pillow: pip install 'fedgela[hub]'")

local_hub = pytest.importorskip("local_hub")
Columns = local_hub.Columns
labelled, picture, publish = local_hub.labelled, local_hub.picture, local_hub.publish


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub and an empty data directory."""
    monkeypatch.setenv("FEDGELA_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("FEDGELA_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "hub"


def publish_cifar10(hub: Path) -> Columns:
    train = {"img": [picture(i) for i in range(6)], "label": [0, 1, 2, 0, 1, 2]}
    test = {"img": [picture(i) for i in range(10, 13)], "label": [2, 1, 0]}
    names = labelled("img", "label", ["airplane", "automobile", "bird"])
    publish(hub / "uoft-cs/cifar10", "plain_text", names, train=train, test=test)
    return train


def test_cifar10_is_fetched_pixel_for_pixel(hub: Path) -> None:
    train = publish_cifar10(hub)
    data = load_dataset("cifar10")
    assert data.name == "cifar10"
    assert data.class_names == ("airplane", "automobile", "bird")
    assert data.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.y_test.tolist() == [2, 1, 0]
    for i, image in enumerate(train["img"]):
        assert (data.x_train[i].permute(1, 2, 0).numpy() == np.asarray(image)).all()
    assert not data.augment
    assert data.client_train is None


def test_what_was_fetched_is_kept_with_its_checksum(hub: Path, tmp_path: Path) -> None:
    publish_cifar10(hub)
    first = load_dataset("cifar10")
    kept = tmp_path / "data" / "cifar10.npz"
    assert sorted(path.name for path in kept.parent.iterdir()) == ["cifar10.npz", "cifar10.npz.sha256"]
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    assert kept.with_name("cifar10.npz.sha256").read_text() == f"{digest}  cifar10.npz\n"
    (hub / "uoft-cs").rename(hub / "gone")  # the hub is not asked again
    assert load_dataset("cifar10").fingerprint == first.fingerprint


def test_a_damaged_kept_file_is_found_wherever_the_damage_is(hub: Path, tmp_path: Path) -> None:
    publish_cifar10(hub)
    load_dataset("cifar10")
    kept = tmp_path / "data" / "cifar10.npz"
    content = kept.read_bytes()
    pixels = content.index(b"x_train.npy") + 500
    for place in (pixels, pixels + 3000, pixels + 9000):
        kept.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(UserError, match=r"cifar10\.npz: not a readable .*; delete it, and it is fetched"):
            load_dataset("cifar10")


def test_cifar100_has_its_fine_labels_and_augmentation(hub: Path) -> None:
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(num_classes=100),
            "coarse_label": datasets.ClassLabel(num_classes=20),
        }
    )
    part = {"img": [picture(i) for i in range(3)], "fine_label": [99, 4, 7], "coarse_label": [1, 2, 3]}
    publish(hub / "uoft-cs/cifar100", "cifar100", features, train=part, test=part)
    data = load_dataset("cifar100")
    assert data.y_train.tolist() == [99, 4, 7]
    assert data.classes == 100
    assert data.augment
    assert not load_dataset("cifar100", augment=False).augment


def test_svhn_is_its_cropped_digits(hub: Path) -> None:
    part = {"image": [picture(i) for i in range(3)], "label": [0, 1, 9]}
    names = labelled("image", "label", list(string.digits))
    publish(hub / "ufldl-stanford/svhn", "cropped_digits", names, train=part, test=part, extra=part)
    data = load_dataset("svhn")
    assert (len(data.y_train), len(data.y_test), data.classes) == (3, 3, 10)  # without `extra`


def publish_isic(hub: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "center": datasets.Value("int64"),
            "label": datasets.ClassLabel(num_classes=8),
        }
    )
    train = {
        "image": [picture(i, size=(120 + i, 90)) for i in range(6)],
        "center": [0, 1, 2, 3, 4, 5],
        "label": [0, 1, 7, 0, 1, 2],
    }
    test = {"image": [picture(9, size=(90, 90))], "center": [3], "label": [5]}
    publish(hub / "flwrlabs/fed-isic2019", "default", features, train=train, test=test)


@pytest.mark.parametrize("name", ["fed-isic2019", "fed_isic2019"])
def test_fed_isic2019_has_six_centres_the_given_folds_and_one_size(
    hub: Path, tmp_path: Path, name: str
) -> None:
    publish_isic(hub)
    data = load_dataset(name)
    assert data.spec.shape == (3, 84, 84)
    assert data.classes == 8
    assert data.client_train is not None and data.client_test is not None
    assert data.client_train.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.client_test.tolist() == [3]
    assert data.y_test.tolist() == [5]
    assert (tmp_path / "data" / "fed_isic2019.npz").is_file()


def test_another_image_size_is_another_file(hub: Path, tmp_path: Path) -> None:
    publish_isic(hub)
    assert load_dataset("fed-isic2019", image_size=60).spec.shape == (3, 60, 60)
    assert load_dataset("fed-isic2019").spec.shape == (3, 84, 84)
    assert {p.name for p in (tmp_path / "data").glob("*.npz")} == {"fed_isic2019.npz", "fed_isic2019_60.npz"}


def test_each_femnist_writer_has_samples_to_train_and_to_test(hub: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "hsf_id": datasets.Value("int64"),
            "character": datasets.ClassLabel(names=[*string.digits, *string.ascii_letters]),
        }
    )
    writers = ["f0003_41"] * 10 + ["f0001_02"] * 3 + ["f0002_07"]
    samples = {
        "image": [picture(i, size=(28, 28), grey=True) for i in range(14)],
        "writer_id": writers,
        "hsf_id": [0] * 14,
        "character": list(range(14)),  # so that a label tells the sample
    }
    publish(hub / "flwrlabs/femnist", "default", features, train=samples)
    data = load_dataset("femnist")
    assert data.spec.shape == (1, 28, 28)
    assert data.classes == 62
    assert data.client_names == ("f0001_02", "f0002_07", "f0003_41")
    assert data.client_train is not None and data.client_test is not None
    assert np.bincount(data.client_train).tolist() == [2, 1, 8]
    assert np.bincount(data.client_test, minlength=3).tolist() == [1, 0, 2]
    assert sorted([*data.y_train.tolist(), *data.y_test.tolist()]) == list(range(14))
    for y, ids in ((data.y_train, data.client_train), (data.y_test, data.client_test)):
        assert [data.client_names[k] for k in ids] == [writers[i] for i in y]
    assert build_federation(data, "natural", 2, 0, seed=0).clients == 2


def test_shakespeares_rows_become_the_text_they_are_windows_of(hub: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    letters = LETTERS[1:].replace(" ", "")
    text = {
        role: "".join(rng.choice(list(letters), n)) for role, n in (("PLAY_ROMEO", 500), ("PLAY_JULIET", 450))
    }
    rows = [(role, t[i : i + 80], t[i + 80]) for role, t in text.items() for i in range(len(t) - 80)]
    features = datasets.Features({key: datasets.Value("string") for key in ("character_id", "x", "y")})
    columns = dict(zip(("character_id", "x", "y"), map(list, zip(*rows, strict=True)), strict=True))
    publish(hub / "flwrlabs/shakespeare", "default", features, train=columns)
    data = load_dataset("shakespeare")
    assert data.client_names == ("PLAY_JULIET", "PLAY_ROMEO")
    assert len(data.y_train) == (400 - 80) + (360 - 80)
    assert len(data.y_test) == (100 - 80) + (90 - 80)
    with np.load(tmp_path / "data" / "shakespeare.npz") as kept:
        assert kept["text"].tobytes().decode() == text["PLAY_ROMEO"] + text["PLAY_JULIET"]
        assert kept["role"].tolist() == ["PLAY_ROMEO", "PLAY_JULIET"]


# -- what goes wrong -----------------------------------------------------------------------------------


def refused(name: str) -> str:
    with pytest.raises(UserError) as error:
        load_dataset(name)
    assert len(str(error.value).splitlines()) == 2
    return str(error.value)


def test_without_network_and_file_one_message_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGELA_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("FEDGELA_HUB", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    told = refused("fed-isic2019")
    assert f"fed_isic2019.npz is not in {tmp_path / 'data'}" in told
    assert "127.0.0.1:9 cannot be reached" in told
    assert "put a file fed_isic2019.npz there with x_train" in told
    assert "client_train" in told
    assert "text (uint8" in refused("shakespeare")
    assert "client" not in refused("cifar10")
    assert not (tmp_path / "data").exists()  # nothing half-written


def test_a_missing_library_is_named(tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    assert "pip install 'fedgela[hub]'" in refused("cifar10")


def test_a_data_directory_that_cannot_be_written_is_named(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_cifar10(hub)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDGELA_DATA", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/cifar10\.npz cannot be written"):
        load_dataset("cifar10")


def test_other_columns_are_named(hub: Path) -> None:
    names = labelled("picture", "label", ["a", "b"])
    part = {"picture": [picture(0)], "label": [0]}
    publish(hub / "uoft-cs/cifar10", "plain_text", names, train=part, test=part)
    assert "its columns are picture, label, without img" in refused("cifar10")


def test_a_damaged_image_stops_the_conversion(hub: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    picture(0).save(buffer, "PNG")
    broken = {"bytes": buffer.getvalue()[:200], "path": None}
    part = {"img": [picture(0), broken], "label": [0, 1]}
    names = labelled("img", "label", ["a", "b"])
    publish(hub / "uoft-cs/cifar10", "plain_text", names, train=part, test=part)
    assert "an image of its split train cannot be read" in refused("cifar10")
    assert not (tmp_path / "data" / "cifar10.npz").exists()


def test_a_missing_repository_is_named(hub: Path) -> None:
    assert "FEDGELA_HUB holds no folder uoft-cs/cifar10" in refused("cifar10")


def test_a_repository_that_datasets_cannot_read_is_an_error(hub: Path) -> None:
    (hub / "uoft-cs/cifar10").mkdir(parents=True)
    (hub / "uoft-cs/cifar10/train-00000-of-00001.parquet").write_bytes(b"not parquet")
    assert "could not be fetched" in refused("cifar10")
