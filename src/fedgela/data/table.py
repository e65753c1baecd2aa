"""A .parquet or .csv file of the user's own: label, an image or numbers, perhaps client, split, group, id."""

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgela.data.arrays import as_float32, split_dataset
from fedgela.data.cells import check_cells
from fedgela.data.columns import ID, NAMED, PANDAS_INDEX, ROLES, doubtful, nearly
from fedgela.data.csv_form import check_form
from fedgela.data.dataset import Dataset
from fedgela.data.images import DEFAULT_SIZE, decode
from fedgela.data.split import own_tests
from fedgela.data.unreadable import Unreadable, without_unreadable
from fedgela.errors import UserError, first_line, prefixed, some_of

NUMBERS = {"int64": re.compile(r"-?(0|[1-9]\d*)"), "float64": re.compile(r"[+-]?\d*\.\d*(e[+-]?\d+)?", re.I)}

# what may be done with columns of words in one's own data
INSTEAD = (
    f"; make numbers, leave them out, or rename: {ID!r} is what rows are called, 'group' says which belong "
    "together, 'client' who holds them"
)
SHOWN = 10  # columns in a message


def load_table(path: Path, image_size: int | None, unreadable: Unreadable) -> Dataset:
    table = read_table(path)
    with prefixed(path):
        names = table.column_names
        if "label" not in names:
            near = nearly("label", names)
            hint = f" (did you mean {near!r}? rename it)" if near else ""
            raise UserError(f"lacks a column label; it has {some_of(names, SHOWN) or 'none'}{hint}")
        numbers = () if "image" in names else feature_names(table)
        read = [name for name in names if name in (*ROLES, *numbers) and name != ID]
        check_cells(table, read, numbers, missing_of(path), INSTEAD)
        return _dataset(path.stem, table, image_size or DEFAULT_SIZE, unreadable)


def read_table(path: Path) -> Any:
    """The file as a pyarrow.Table, checked to have rows and no two columns of the same name.

    Without pandas' index: it numbers the rows, from which labels might be told. An index that has the name of
    a role, such as client, is kept.
    """
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: read with pyarrow, which is missing: pip install 'fedgela[hub]'") from None
    # labels and clients are read as text at first: as names 007 and 7 are different
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys((*NAMED, ID), pyarrow.string()))
    try:
        if path.suffix.lower() == ".csv":
            with prefixed(path):
                check_form(path)
            table = pyarrow.csv.read_csv(path, convert_options=as_text)
        else:
            table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a readable {path.suffix} file ({first_line(error)})") from None
    # in a .csv pandas' index is a column with an empty name
    index = [*(table.schema.pandas_metadata or {}).get("index_columns", []), ""]
    table = table.drop_columns([name for name in table.column_names if name in index and name not in ROLES])
    with prefixed(path):
        if table.num_rows == 0:
            raise UserError("holds no rows")
        for column, count in Counter(table.column_names).items():
            if count > 1:
                raise UserError(f"has {count} columns called {column}")
    table = _with_numbers(table) if path.suffix.lower() == ".csv" else _in_plain_types(table)
    return _with_integers(table)


def _in_plain_types(table: Any) -> Any:
    """The table with the values of pandas' categories, so that they are checked like any column, and with the
    decimals of a database as numbers."""
    import pyarrow

    for place, column in enumerate(table.schema):
        plain = column.type
        if pyarrow.types.is_dictionary(plain):
            plain = plain.value_type
        if pyarrow.types.is_decimal(plain):
            plain = pyarrow.float64()
        if plain != column.type:
            table = table.set_column(place, column.name, table[place].cast(plain))
    return table


def _with_numbers(table: Any) -> Any:
    """The table, in which columns that were read as text are numbers if all their values are."""
    import pyarrow

    for column in set(NAMED) & set(table.column_names):
        values = [value.strip() for value in table[column].to_pylist()]
        kind = next((kind for kind, form in NUMBERS.items() if all(map(form.fullmatch, values))), None)
        if kind is not None and values:
            with contextlib.suppress(pyarrow.ArrowInvalid):  # too large for a number: they stay names
                numbers = pyarrow.array(values).cast(kind)
                table = table.set_column(table.column_names.index(column), column, numbers)
    return table


def _with_integers(table: Any) -> Any:
    """The table, in which labels, clients and groups such as 1.0 and 2.0 are 1 and 2: pandas makes floats of
    integers where one was once missing."""
    import pyarrow

    for place, column in enumerate(table.schema):
        if column.name in NAMED and pyarrow.types.is_floating(column.type):
            with contextlib.suppress(pyarrow.ArrowInvalid):  # fractions: `codes` refuses them
                table = table.set_column(place, column.name, table[place].cast(pyarrow.int64()))
    return table


def missing_of(path: Path) -> list[str]:
    """The spellings of a missing value: in a .csv those that pyarrow knows in columns of numbers; in a
    .parquet, which has real nulls, those that pandas leaves when it turns them into strings."""
    import pyarrow.csv

    csv = path.suffix.lower() == ".csv"
    return ["", *pyarrow.csv.ConvertOptions().null_values] if csv else ["", "nan"]


def _dataset(name: str, table: Any, size: int, unreadable: Unreadable) -> Dataset:
    y, class_names = codes(table["label"].to_numpy(), "label")
    if y.min() < 0:
        raise UserError(f"column label holds {y.min()}; labels are numbers from 0, or names")
    client: np.ndarray | None = None
    client_names: tuple[str, ...] = ()
    if "client" in table.column_names:
        client, client_names = codes(table["client"].to_numpy(), "client")
    group = codes(table["group"].to_numpy(), "group")[0] if "group" in table.column_names else None
    columns: tuple[str, ...] = ()  # the features
    if "image" in table.column_names:
        decoded = decode(encoded_images(table["image"]), size)
        decoded.check_depth()
        x, read = without_unreadable(decoded, row_name, unreadable)
    else:
        columns = feature_names(table)
        x, read = features(table, columns), np.ones(len(y), dtype=bool)
    test = _test(table, y, client, group)
    return split_dataset(
        name,
        x,
        y[read],
        test[read],
        None if client is None else client[read],
        None if group is None else group[read],
        class_names=class_names,
        numbers_written=not class_names,
        client_names=client_names,
        feature_names=columns,
        notes=tuple(doubtful(table, columns)),
    )


def codes(values: np.ndarray, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column's values as integers, and their names: integers as they are, strings (without surrounding
    blanks) as their places among the sorted names, and so False and True, which a .csv has as strings."""
    if values.dtype == np.bool_:
        values = values.astype(str)
    if np.issubdtype(values.dtype, np.integer):
        return values, ()
    if values.dtype.kind in "OU" and all(isinstance(value, str) for value in values.tolist()):
        names, places = np.unique([value.strip() for value in values.tolist()], return_inverse=True)
        return places.astype(np.int64), tuple(names.tolist())
    told = str(values.dtype)
    if values.dtype.kind == "f":
        row = int(np.argmax(~(values % 1 == 0)))  # the first that is no integer; else they are too large
        told += f", such as {values[row]:g} in row {row}"
    raise UserError(f"column {column} must be integers or strings, not {told}")


def _test(table: Any, y: np.ndarray, client: np.ndarray | None, group: np.ndarray | None) -> np.ndarray:
    if "split" not in table.column_names:
        return own_tests(y, client, group)
    test = split_of(table)
    if test.all() or not test.any():
        which = "test" if test.all() else "train"
        raise UserError(f"column split says '{which}' of every row; give both, or leave the column out")
    return test


def split_of(table: Any) -> np.ndarray:
    """Which rows are for testing, [n]."""
    split = table["split"].to_pylist()
    strange = set(split) - {"train", "test"}
    if strange:
        raise UserError(f"column split must say 'train' or 'test', not {min(map(repr, strange))}")
    return np.array([part == "test" for part in split])


def encoded_images(column: Any) -> list[bytes]:
    """Encoded images: plain bytes, or the hub's struct of bytes and path."""
    values = [value.get("bytes") if isinstance(value, dict) else value for value in column.to_pylist()]
    encoded = [value for value in values if isinstance(value, bytes)]
    if len(encoded) < len(values):
        kind = column.type
        files = "; image files are read from folders SITE/CLASS/*.jpg" if "string" in str(kind) else ""
        raise UserError(
            f"column image must be encoded images (bytes, or a struct with bytes), not {kind}{files}"
        )
    return encoded


def row_name(row: int) -> str:
    return f"row {row}"


def feature_names(table: Any) -> tuple[str, ...]:
    return tuple(
        name for name in table.column_names if name not in ROLES and not PANDAS_INDEX.fullmatch(name)
    )


def features(table: Any, columns: Sequence[str]) -> np.ndarray:
    """[n, d]: these columns, in this order; their cells are checked."""
    if not columns:
        raise UserError("has neither a column image nor columns of numbers beside label")
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(f"lacks the column {missing[0]}{more}")
    return np.stack([as_float32(f"column {name}", table[name].to_numpy()) for name in columns], axis=1)
