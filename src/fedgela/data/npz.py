"""Reading .npz files, fetched ones or the user's own, and writing one with its checksum."""

import difflib
import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedgela.data.arrays import REAL, as_float32, make_dataset
from fedgela.data.dataset import Dataset
from fedgela.data.groups import check_group, repeated_ids
from fedgela.data.split import own_tests
from fedgela.data.text import TEXT, next_characters
from fedgela.errors import UserError, did_you_mean, prefixed, printable, some_of
from fedgela.files import TEMPORARY, sync_folder, write_atomically

# what np.load may raise for a damaged file, or one of another kind
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    TypeError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
PARTS = ("x_train", "y_train", "x_test", "y_test")
GROUPS = ("group", "group_train", "group_test")
CLIENTS = ("client", "client_train", "client_test")
NAMES = ("class_names", "client_names")
IDS = ("id", "id_train", "id_test")  # names of samples, for predictions only
ALIKE = 0.85  # similarity of two names from which one is taken for the other misspelt
SHOWN = 5  # arrays in a note
Arrays = dict[str, np.ndarray]


def load_npz(name: str, path: Path) -> Dataset:
    arrays = read_arrays(path)
    with prefixed(path):
        if arrays.keys() >= TEXT:
            return next_characters(name, arrays["text"], arrays["offset"], arrays["role"])
        notes = (*_unused(arrays), *_repeated_ids(arrays))
        for key in ("client", "group"):
            if key in arrays and set(PARTS) & arrays.keys():
                raise UserError(f"has {key} beside x_train; the {key}s are {key}_train and {key}_test then")
        if {"x", "y"} <= arrays.keys() and not set(PARTS) & arrays.keys():
            arrays = _split(arrays)
        for one, other in (("x", "y"), ("y", "x")):
            if one in arrays and other not in arrays and not set(PARTS) & arrays.keys():
                raise UserError(f"has {one}, but lacks {other}")
        missing = [key for key in PARTS if key not in arrays]
        if missing:
            instead = " (or x and y instead)" if len(missing) == len(PARTS) else ""
            held = ", ".join(arrays) or "nothing"
            raise UserError(f"lacks {', '.join(missing)}{instead}; it holds {held}")
        return make_dataset(
            name,
            arrays["x_train"],
            arrays["y_train"],
            arrays["x_test"],
            arrays["y_test"],
            client_train=arrays.get("client_train"),
            client_test=arrays.get("client_test"),
            group_train=arrays.get("group_train"),
            group_test=arrays.get("group_test"),
            class_names=names_of(arrays, "class_names"),
            client_names=names_of(arrays, "client_names"),
            notes=notes,
        )


def _unused(arrays: Arrays) -> tuple[str, ...]:
    """A note of the arrays that nothing reads. A misspelt name is an error, since without its clients, say,
    the file would be trained on all the same, and differently."""
    unused = sorted(arrays.keys() - {*PARTS, "x", "y", *CLIENTS, *GROUPS, *NAMES, *IDS})
    lacking = [key for key in (*CLIENTS, *GROUPS, *NAMES) if key not in arrays]
    for key in unused:
        # without an array of clients, what is called clients, client_id or Client_train is meant to be one
        clients = key.lower().startswith("client") and not set(CLIENTS) & arrays.keys()
        if clients or difflib.get_close_matches(key.lower(), lacking, n=1, cutoff=ALIKE):
            raise UserError(
                f"holds an array {key}, which nothing reads{did_you_mean(key, lacking)}; rename it, or leave "
                "it out"
            )
    if not unused:
        return ()
    names = [printable(key) for key in unused]
    return (f"arrays of the file that nothing reads: {some_of(names, SHOWN)}",)


def _repeated_ids(arrays: Arrays) -> tuple[str, ...]:
    if set(GROUPS) & arrays.keys():
        return ()
    return repeated_ids(one for key in IDS if key in arrays for one in arrays[key].ravel().tolist())


def _split(arrays: Arrays) -> Arrays:
    x, y, client, group = arrays["x"], arrays["y"], arrays.get("client"), arrays.get("group")
    for key, values in (("y", y), ("client", client)):
        if values is not None and (values.ndim != 1 or x.ndim == 0 or len(values) != len(x)):
            raise UserError(
                f"{key} must be one integer a sample of x, not {values.dtype} {list(values.shape)}"
            )
        if values is not None and values.dtype.kind in "US":
            names = "class_names" if key == "y" else "client_names"
            raise UserError(
                f"{key} holds strings; give their places and their names: "
                f"{names}, {key} = np.unique({key}, return_inverse=True)"
            )
    if x.ndim == 2 and x.dtype.kind in REAL:
        x = as_float32("x", x)  # before the split, so that an error names the row in the file
    if group is not None:
        check_group("group", group, len(x))
    test = own_tests(y, client, group)
    parts: Arrays = {}
    for key, values in (("x", x), ("y", y), ("client", client), ("group", group)):
        if values is not None:
            parts |= {f"{key}_train": values[~test], f"{key}_test": values[test]}
    return {**arrays, **parts}


def names_of(arrays: Arrays, key: str) -> tuple[str, ...]:
    names = arrays.get(key, np.empty(0, dtype=str))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise UserError(f"{key} must be a row of strings, not {names.dtype} {list(names.shape)}")
    return tuple(names.tolist())


# -- the file ------------------------------------------------------------------------------------------


def read_arrays(path: Path) -> Arrays:
    """All arrays. np.load compares each with its checksum in the file as it reads, which costs next to
    nothing; a second pass for the checksum beside the file would double the time."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except UNREADABLE as error:
        fetched = checksum_of(path).is_file()
        hint = "; delete it, and it is fetched again" if fetched else ""
        raise UserError(f"{path}: not a readable .npz file ({_why(path, error)}){hint}") from None


def _why(path: Path, error: Exception) -> str:
    """NumPy's message, but without its advice to allow pickled objects, which is not safe."""
    if not path.is_dir() and path.exists() and not zipfile.is_zipfile(path):
        return "it is no zip archive, as numpy.savez writes them"
    if "Object arrays" in str(error):
        return "it holds an array of Python objects; save arrays of numbers or strings"
    return str(error)


def checksum_of(path: Path) -> Path:
    """Where the checksum of a fetched file is kept, for `sha256sum --check`."""
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file and its checksum: in full, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(TEMPORARY, path.name, path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        # the checksum first: one without its file does no harm
        write_atomically(checksum_of(path), f"{_digest(temporary)}  {path.name}\n")
        temporary.rename(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
