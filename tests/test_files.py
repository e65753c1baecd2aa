"""Files are whole or absent, and tensors come back as they were or not at all."""

import errno
from pathlib import Path

import pytest
import torch

from fedgela import files
from fedgela.errors import UserError
from fedgela.files import (
    check_apart,
    check_folder,
    read_entries,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)
from helpers import same


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")

    def power_cut(handle: int) -> None:
        raise OSError("no power")

    monkeypatch.setattr(files.os, "fsync", power_cut)
    with pytest.raises(OSError, match="no power"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_told_with_the_path_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    path = tmp_path / "a.txt"
    with pytest.raises(OSError) as error:
        write_atomically(path, "new")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(path))
    assert str(error.value) == f"[Errno {errno.ENOSPC}] No space left on device: '{path}'"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_told_with_the_path_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_atomically(tmp_path / "none" / "a.txt", "new")
    assert error.value.filename == str(tmp_path / "none" / "a.txt")


def test_a_folder_is_checked_and_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, words in (
        (tmp_path / "file", f"--here: {tmp_path / 'file'} is a file, not a folder"),
        (tmp_path / "file" / "below", f"--here: {tmp_path / 'file'} is a file, not a folder"),
        (Path("/proc/nowhere/below"), "cannot be written to ("),  # not even by root
        (tmp_path / ("x" * 300), "cannot be written to (File name too long)"),
    ):
        with pytest.raises(UserError) as error:
            check_folder(folder, "--here")
        assert words in str(error.value) and str(error.value).startswith("--here: ")


def test_the_content_is_synced_before_the_name_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "a.txt", []
    sync = files.os.fsync

    def watch(handle: int) -> None:
        seen.append(path.exists())
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", watch)
    write_atomically(path, b"x")
    assert seen == [False, True]  # the file before the rename, its folder after it
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json_never_holds_a_number_that_json_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_tensors_and_note_come_back_to_the_bit(tmp_path: Path) -> None:
    tensors = {
        "w": torch.tensor([0.1, -0.0, float("inf"), float("nan")]),
        "n": torch.arange(3),
        "flag": torch.tensor([True, False]),
        "turned": torch.arange(6.0).view(2, 3).T,  # not contiguous
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    name = write_tensors(tmp_path, "m", tensors, note='{"ü": 1}')
    back, note = read_tensors(tmp_path / name)
    assert note == '{"ü": 1}'
    assert back.keys() == tensors.keys()
    for key, value in tensors.items():
        assert back[key].dtype == value.dtype
        assert torch.equal(back[key].nan_to_num(7), value.nan_to_num(7))


def test_a_few_entries_come_back_to_the_bit_and_torch_does_not_take_ctrl_c_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {
        "w": torch.randn(3, 5),
        "half": torch.randn(7).bfloat16(),
        "count": torch.tensor(2**40),
        "none": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
    }
    path = tmp_path / write_tensors(tmp_path, "m", tensors, note="a note")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # torch asks a storage, in Python, for its first byte, and tells whatever that raises as a ValueError
    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", interrupted)
    for entries in ({"w"}, {"count", "half"}, {"none"}, set(tensors), set[str]()):
        assert same(read_entries(path, entries), {name: tensors[name] for name in entries})


def test_equal_content_has_an_equal_name(tmp_path: Path) -> None:
    one = write_tensors(tmp_path, "m", {"w": torch.zeros(2)})
    assert write_tensors(tmp_path, "m", {"w": torch.zeros(2)}) == one
    assert write_tensors(tmp_path, "m", {"w": torch.ones(2)}) != one


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_a_flipped_bit_is_noticed(tmp_path: Path, place: str) -> None:
    path = tmp_path / write_tensors(tmp_path, "m", {"w": torch.zeros(100)})
    content = bytearray(path.read_bytes())
    content[{"start": 0, "middle": len(content) // 2, "end": -1}[place]] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name} is truncated or altered"):
        read_tensors(path)


@pytest.mark.parametrize("length", [0, 4, 50, -1])
def test_a_truncated_file_is_noticed(tmp_path: Path, length: int) -> None:
    path = tmp_path / write_tensors(tmp_path, "m", {"w": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="truncated or altered"):
        read_tensors(path)


def test_a_file_by_another_name_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / write_tensors(tmp_path, "m", {"w": torch.zeros(1)})
    other = path.rename(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="checksum"):
        read_tensors(other)


def test_what_is_read_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, photos = tmp_path / "data.csv", tmp_path / "photos"
    data.write_text("1")
    (photos / "cat").mkdir(parents=True)
    (tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "album").symlink_to(photos)
    (tmp_path / "twin.csv").hardlink_to(data)
    (photos / "away.csv").symlink_to(tmp_path / "elsewhere.csv")
    monkeypatch.chdir(photos)
    for out in (data, Path("../data.csv"), tmp_path / "link.csv", tmp_path / "twin.csv"):
        for read in (data, tmp_path / "link.csv"):
            with pytest.raises(UserError, match=r"^--out: .* is read by this command, and would be overwr"):
                check_apart(out, tmp_path / "other.csv", read)
    for out in (Path("cat/p.csv"), tmp_path / "album/p.csv", photos / "new/p.csv", photos / "away.csv"):
        for read in (photos, tmp_path / "album"):
            with pytest.raises(UserError, match=rf"^--here: .* lies in {read}, which this command reads"):
                check_apart(out, read, option="--here")
    check_apart(tmp_path / "p.csv", data, photos, tmp_path / "nowhere")
    check_apart(tmp_path / "photos-of-cats/p.csv", photos)
