import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgela.data import build_federation, load_dataset
from fedgela.data.unreadable import HINT
from fedgela.errors import UserError

Image = pytest.importorskip("PIL.Image", reason="images are read with Pillow: pip install 'fedgela[hub]'")


def draw(path: Path, level: int = 0, size: tuple[int, int] = (20, 10), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode != "RGB" else (level, level, 200)).save(path)


def fill(root: Path, *classes: str, n: int = 5, **options: Any) -> Path:
    for place in classes:
        for i in range(n):
            draw(root / place / f"{i:03}.png", level=i, **options)
    return root


def load(root: Path, **options: Any) -> Any:
    return load_dataset(str(root), **options)


# -- layouts -------------------------------------------------------------------------------------------


def test_class_folders_are_classes_and_every_fifth_image_of_each_is_for_testing(tmp_path: Path) -> None:
    data = load(fill(tmp_path / "pets", "dog", "cat", n=10))
    assert data.name == "pets"
    assert data.class_names == ("cat", "dog")
    assert data.spec.shape == (3, 32, 32)
    assert data.y_train.tolist() == [0] * 8 + [1] * 8
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert data.x_test[:, 0, 0, 0].tolist() == [4, 9, 4, 9]  # by the order of the files' names
    assert data.client_train is None


def test_site_folders_are_natural_clients_and_may_differ_in_classes(tmp_path: Path) -> None:
    data = load(fill(tmp_path, "north/flu", "north/well", "south/well", "south/cold"))
    assert data.class_names == ("cold", "flu", "well")
    assert data.client_names == ("north", "south")
    federation = build_federation(data, "natural", None, 0, seed=0)
    counts = (federation.train_counts + federation.test_counts).tolist()
    assert counts == [[0, 5, 5], [5, 0, 5]]
    assert federation.test_counts.sum(dim=1).tolist() == [2, 2]  # 20 % of each site


def test_a_class_that_one_client_has_one_sample_of_is_trained_on(tmp_path: Path) -> None:
    data = load(fill(fill(tmp_path, "north/flu", "south/flu", n=6), "south/rare", n=1))
    assert data.class_names[1] == "rare"
    assert 1 in data.y_train.tolist() and 1 not in data.y_test.tolist()


def test_a_class_of_three_images_at_one_site_has_one_to_be_measured_on(tmp_path: Path) -> None:
    fill(fill(tmp_path, "north/flu", "south/flu", n=20), "north/well", "south/well", n=17)
    data = load(fill(tmp_path, "south/rare", n=3))
    rare = data.class_names.index("rare")
    assert (data.y_train.tolist().count(rare), data.y_test.tolist().count(rare)) == (2, 1)


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "TEST"), ("Training", "Testing"), ("training", "test"), ("TRAIN", "testing")],
)
def test_train_and_test_may_be_written_otherwise(tmp_path: Path, train: str, test: str) -> None:
    fill(tmp_path / train, "x", "y", n=3)
    fill(tmp_path / test, "y", n=2)
    for root in (tmp_path, tmp_path / train):
        data = load(root)
        assert (len(data.y_train), len(data.y_test), data.client_train) == (6, 2, None)


def test_files_of_another_kind_are_named_where_there_are_no_images(tmp_path: Path) -> None:
    for i in range(3):
        path = tmp_path / "a" / f"{i}.dcm"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"holds no images \(.*\), but 3 files of the kind \.dcm"):
        load(tmp_path)


def test_files_of_another_kind_among_the_images_are_told(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b")
    (tmp_path / "labels.csv").write_text("")
    (tmp_path / "a/.DS_Store").write_text("")
    assert load(tmp_path).notes == ()
    for name in ("a/1.dcm", "a/2.DCM", "b/1.gif"):
        (tmp_path / name).write_text("")
    assert load(tmp_path).notes == ("files among the images that are not read: 2 of .dcm, 1 of .gif",)


def test_12_bit_values_in_16_bit_files_are_not_flattened_in_silence(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            values = np.full((8, 8), 1000 + 100 * i, dtype=np.uint16)
            Image.fromarray(values).save(tmp_path / name / f"{i}.png")
    with pytest.raises(UserError, match="no value above 1400: 8 bits would keep 6 levels"):
        load(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        Image.fromarray(np.asarray(Image.open(path)) * 16).save(path.with_suffix(".tif"))
        path.unlink()
    data = load(tmp_path)
    assert len(data.y_train) == 8 and data.x_train.unique().tolist() == [62, 68, 75, 81]


def colour_of_16_bits(values: np.ndarray) -> bytes:
    """A PNG file of [height, width, 3]; Pillow writes none of 16 bits a channel."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png


def test_12_bit_values_in_16_bit_colour_are_not_made_dark_in_silence(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (9, 9, 3))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2):
            (tmp_path / name / f"{i}.png").write_bytes(colour_of_16_bits(values))
    with pytest.raises(UserError, match="no value above 4095: 8 bits would keep 16 levels of them; save"):
        load(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(colour_of_16_bits(values * 16))
    assert load(tmp_path, image_size=9).x_train[0].permute(1, 2, 0).tolist() == (values // 16).tolist()


def test_12_bit_values_are_told_where_other_files_have_16(tmp_path: Path) -> None:
    """One site's scanner writes the one, another's the other."""
    fill(tmp_path, "c", mode="L")
    for name, largest in (("a", 4000), ("b", 60000)):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.full((8, 8), largest, dtype=np.uint16)).save(tmp_path / name / f"{i}.png")
    with pytest.warns(UserWarning) as told:
        load(tmp_path)
    assert str(told[0].message) == (
        "5 of its 10 16-bit images have no value above 4000: 8 bits would keep 16 levels of them; if "
        "they are of another scanner, save them with their values spread over all 16 bits"
    )


@pytest.mark.parametrize("site", ["", "a/"])
def test_train_and_test_folders_are_kept(tmp_path: Path, site: str) -> None:
    fill(tmp_path / "train" / site, "x", "y", n=3)
    fill(tmp_path / "test" / site, "y", n=2)
    for root in (tmp_path, tmp_path / "train"):  # the test folder beside it belongs to it
        data = load(root)
        assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
        assert data.y_test.tolist() == [1, 1]
        assert data.client_names == (("a",) if site else ())


def test_a_test_folder_beside_the_classes_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, "x", "y", "test/x", "test/y", n=2)
    data = load(tmp_path)
    assert data.class_names == ("x", "y")
    assert len(data.y_train) == len(data.y_test) == 4


def test_a_bare_word_is_a_folder_where_no_data_set_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "photos", "x", "y")
    fill(tmp_path / "digits", "x", "y")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGELA_DATA", str(tmp_path))
    assert load_dataset("photos").class_names == ("x", "y")
    assert load_dataset("digits").classes == 10
    assert load_dataset("./digits").classes == 2


# -- images --------------------------------------------------------------------------------------------


def test_every_kind_of_file_is_read_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    names = ["a.jpg", "b.JPEG", "c.PNG", "d.webp", "e.Bmp"]
    for folder in ("x", "y"):
        for name in names:
            draw(tmp_path / folder / name)
    (tmp_path / "x" / "notes.txt").write_text("no image")
    (tmp_path / "x" / ".hidden.png").write_text("no image")
    data = load(tmp_path)
    assert len(data.y_train) + len(data.y_test) == 10


def test_images_of_any_size_are_resized(tmp_path: Path) -> None:
    draw(tmp_path / "x" / "a.jpg", level=80, size=(300, 200))
    draw(tmp_path / "x" / "b.png", level=80, size=(3, 7))
    fill(tmp_path, "y")
    data = load(tmp_path, image_size=24)
    assert data.spec.shape == (3, 24, 24)
    both = [data.x_train[data.y_train == 0][0], data.x_test[data.y_test == 0][0]]
    for image in both:
        assert abs(image[0].float().mean() - 80) < 3


def test_grey_files_stay_grey_and_16_bits_are_scaled(tmp_path: Path) -> None:
    fill(tmp_path, "x", mode="L")
    (tmp_path / "y").mkdir()
    for i in range(2):
        Image.fromarray(np.full((9, 9), 0x8040, np.uint16)).save(tmp_path / "y" / f"{i}.png")
    data = load(tmp_path)
    assert data.spec.shape == (1, 32, 32)
    assert data.x_train[data.y_train == 1].unique().tolist() == [0x80]


def test_pillows_warnings_name_no_file_and_are_not_shown(tmp_path: Path) -> None:
    fill(tmp_path, "x", "y")
    path = tmp_path / "y/palette.png"
    Image.linear_gradient("L").convert("RGB").quantize(16).save(path, transparency=bytes(range(16)))
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        Image.open(path).convert("RGB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load(tmp_path).y_train) == 9


def test_of_a_file_with_several_pages_the_first_is_read_and_told(tmp_path: Path) -> None:
    fill(tmp_path, "x", "y", mode="L")
    pages = [Image.new("L", (9, 9), level) for level in (30, 60, 90)]
    pages[0].save(tmp_path / "y/a.tif", save_all=True, append_images=pages[1:])
    with pytest.warns(
        UserWarning, match="1 of 11 images are TIFF files of several pages, of which the first"
    ):
        data = load(tmp_path)
    assert 30 in data.x_train.unique().tolist()


def test_one_coloured_file_makes_all_coloured(tmp_path: Path) -> None:
    fill(tmp_path, "x", mode="L", n=6)
    fill(tmp_path, "y")
    data = load(tmp_path)
    assert data.spec.shape == (3, 32, 32)
    grey = data.x_train[data.y_train == 0]
    assert (grey[:, 0] == grey[:, 2]).all()


def test_photos_are_turned_upright(tmp_path: Path) -> None:
    fill(tmp_path, "x", "y", n=2, size=(32, 32))
    image = Image.new("RGB", (32, 32), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 32, 16))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the upper edge belongs to the right
    image.save(tmp_path / "x" / "000.png", exif=exif)
    x = load(tmp_path).x_train[0, 0].float()
    assert x[:, 24:].mean() > 250 > 5 > x[:, :8].mean()


def test_augmentation_can_be_switched_on(tmp_path: Path) -> None:
    root = fill(tmp_path, "x", "y")
    assert not load(root).augment
    assert load(root, augment=True).augment


# -- unreadable files ----------------------------------------------------------------------------------


def broken(root: Path) -> Path:
    fill(root, "x", "y", n=6)
    for i in range(4):
        (root / "x" / f"00{i}.png").write_bytes(b"not an image")
    return root


def test_unreadable_files_are_named_and_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        load(broken(tmp_path))
    told = str(error.value)
    assert f"{tmp_path}: 4 of 12 images cannot be read: x/000.png (" in told
    assert "x/002.png" in told and "x/003.png" not in told and "and 1 more" in told
    assert told.splitlines()[1:] == [HINT.strip()]


def test_unreadable_files_are_skipped_by_choice_and_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="4 of 12 images cannot be read.*left out"):
        data = load(broken(tmp_path), unreadable="skip")
    assert len(data.y_train) + len(data.y_test) == 8
    assert (data.y_train == 0).sum() == (data.y_test == 0).sum() == 1


def test_a_truncated_file_is_unreadable(tmp_path: Path) -> None:
    fill(tmp_path, "x", "y", size=(64, 64))
    path = tmp_path / "y" / "004.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"1 of 10 images cannot be read: y/004\.png"):
        load(tmp_path)


def test_nothing_readable_is_an_error_in_any_case(tmp_path: Path) -> None:
    for place in ("x/a.jpg", "y/a.jpg"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_text("")
    with pytest.raises(UserError, match="2 of 2 images cannot be read"), warnings.catch_warnings():
        load(tmp_path, unreadable="skip")


# -- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "holds no images"),
        (["x/notes.txt"], "holds no images"),
        (["a.jpg", "b.jpg"], r"a\.jpg lies neither in CLASS nor in SITE/CLASS"),
        (["x/a.jpg"], "holds one class only, x"),
        (["s/x/a.jpg", "t/x/a.jpg"], "holds one class only, x"),
        (["x/a.jpg", "s/y/a.jpg"], r"different depths: s/y/a\.jpg but x/a\.jpg|x/a\.jpg but s/y/a\.jpg"),
        (["x/a.jpg", "b.jpg"], "different depths"),
        (["1/2/3/a.jpg"], r"1/2/3/a\.jpg lies neither in CLASS nor"),
        (["train/x/a.jpg", "train/y/a.jpg"], "a folder train but no images in a folder test"),
        (["Training/x/a.jpg", "Validation/x/a.jpg"], "a folder Training but no images in a folder test"),
        (["Training/x/a.jpg", "Testing/x/a.jpg", "val/x/a.jpg"], r"val/x/a\.jpg lies beside train and test"),
        (
            ["train/x/a.jpg", "Training/y/a.jpg", "test/x/a.jpg"],
            "has two folders for the train images, Training and train",
        ),
        (["test/x/a.jpg", "test/y/a.jpg"], "a folder test but no training images"),
        (["train/x/a.jpg", "test/x/a.jpg", "y/a.jpg"], r"y/a\.jpg lies beside train and test"),
        (["train/x/a.jpg", "test/a.jpg"], r"test/a\.jpg lies in no class"),
        (["x/a.jpg", "test/a.jpg"], r"test/a\.jpg lies in no class"),
        (["train/x/a.jpg", "test/s/x/a.jpg"], "different depths"),
        (["x/a.jpg", "y/a.jpg", "z/"], "the class z has no images"),
        (["s/x/a.jpg", "s/y/a.jpg", "t/"], "the site t has no images"),
        (["s/x/a.jpg", "t/y/a.jpg", "t/z/"], "the class z has no images"),
        (["x/a.jpg", "y/a.jpg"], "no class has two samples, of which one is for testing"),
        (["s/x/a.jpg", "t/y/a.jpg"], "no client has two samples, of which one is for testing"),
    ],
)
def test_a_wrong_folder_is_named_with_what_is_wrong(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if path.suffix == ".jpg":
            draw(path)
        elif path.suffix:
            path.write_text("text")
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert len(str(error.value).splitlines()) <= 2


def test_a_site_that_is_only_tested_on_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "train", "north/x", "north/y")
    fill(tmp_path / "test", "north/x", "south/y")
    with pytest.raises(UserError, match="client south has test samples but no training samples"):
        build_federation(load(tmp_path), "natural", None, 0, seed=0)


def test_a_site_may_lack_a_class_that_another_has(tmp_path: Path) -> None:
    fill(tmp_path, "s/x", "t/y")
    (tmp_path / "s" / "y").mkdir()
    assert load(tmp_path).class_names == ("x", "y")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder or file .*nowhere"):
        load(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, scandir = fill(tmp_path / "pets", "cat", "dog", "bird"), os.scandir

    def refused(place: Any) -> Any:
        if str(place).endswith("bird"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match="bird: cannot be read"):
        load(root)
