import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgela.data import Dataset, build_federation, load_dataset
from fedgela.data.sources import data_directory
from fedgela.data.text import LENGTH, LETTERS, clean, next_characters
from fedgela.errors import UserError


def plays(**said: str) -> dict[str, np.ndarray]:
    texts = list(said.values())
    return {
        "text": np.frombuffer("".join(texts).encode(), dtype=np.uint8),
        "offset": np.cumsum([0, *map(len, texts)]),
        "role": np.array(list(said)),
    }


def speech(n: int, seed: int = 0) -> str:
    letters = list(LETTERS[1:].replace(" ", ""))  # no white space: nothing to clean up
    return "".join(np.random.default_rng(seed).choice(letters, n))


def strings(x: Any) -> list[str]:
    return ["".join(LETTERS[int(token)] for token in row) for row in x]


def windows(text: str) -> list[str]:
    return [text[i : i + LENGTH + 1] for i in range(len(text) - LENGTH)]


def seen_and_next(data: Dataset, part: str) -> list[str]:
    x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
    return [a + LETTERS[int(b)] for a, b in zip(strings(x), y, strict=True)]


def test_leafs_vocabulary_has_80_different_characters() -> None:
    assert len(LETTERS) == len(set(LETTERS)) == 80


def test_80_characters_predict_the_next_and_the_cut_in_time_is_never_crossed() -> None:
    romeo, juliet = speech(500), speech(700, seed=1)
    data = next_characters("shakespeare", **plays(ROMEO=romeo, JULIET=juliet))
    assert data.kind == "tokens"
    assert data.spec.shape == (80,)
    assert data.vocabulary == data.classes == 80
    assert data.client_names == ("JULIET", "ROMEO")
    # the first 80 % of a role's text are for training, the rest for testing
    assert seen_and_next(data, "train") == windows(juliet[:560]) + windows(romeo[:400])
    assert seen_and_next(data, "test") == windows(juliet[560:]) + windows(romeo[400:])
    assert data.client_train is not None
    assert data.client_train.tolist() == [0] * (560 - 80) + [1] * (400 - 80)


def test_white_space_is_cleaned_up_as_in_leaf() -> None:
    data = next_characters("s", **plays(A="To be,\nor  not    to be. " * 40))
    clean = "To be, or not to be. " * 40
    assert seen_and_next(data, "train") == windows(clean[: int(0.8 * len(clean))])


def test_a_role_too_short_for_both_sides_is_left_out() -> None:
    data = next_characters("s", **plays(SHORT=speech(400), LONG=speech(406), MUTE=""))
    assert data.client_names == ("LONG",)  # of 406, 324 characters train and 82 test
    assert len(data.y_test) == 2


def test_several_passages_of_a_role_are_one_client_and_no_window_joins_them() -> None:
    first, second = speech(300), speech(300, seed=1)
    given = plays(A=first, B=second) | {"role": np.array(["A", "A"])}
    data = next_characters("s", **given)
    assert data.client_names == ("A",)
    assert seen_and_next(data, "train") == windows(first) + windows(second[:180])
    assert seen_and_next(data, "test") == windows(second[180:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": np.zeros(500)}, "text must be uint8 characters"),
        ({"role": np.array(["A", "B"])}, "offset one longer than role"),
        ({"offset": np.array([0, 499])}, "offset must run from 0 to the length of text"),
        ({"offset": np.array([0.0, 500.0])}, "offset must run from 0"),
        ({"text": np.full(500, ord("~"), np.uint8)}, "role A: the byte 126 is none of LEAF's 80 characters"),
        ({"text": np.full(90, 65, np.uint8), "offset": np.array([0, 90])}, "no role's text is long enough"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "plays.npz"
    np.savez(path, **(plays(A=speech(500)) | changes))
    with pytest.raises(UserError, match=message) as error:
        load_dataset(str(path))
    assert str(error.value).startswith(f"{path}: ")


# -- validation ----------------------------------------------------------------------------------------


def pieces(windows: list[str], length: int) -> set[str]:
    return {window[i : i + length] for window in windows for i in range(len(window) - length + 1)}


@pytest.mark.parametrize("partition", ["natural", "dirichlet:0.5", "iid"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_no_held_out_window_overlaps_a_training_window(partition: str, share: float) -> None:
    given = plays(A=speech(1500), B=speech(1500, seed=1), C=speech(1500, seed=2))
    data = next_characters("s", **given | {"role": np.array(["A", "B", "B"])})
    clients = None if partition == "natural" else 3
    held = build_federation(data, partition, clients, 0, seed=0, validation=share)
    train, test = (seen_and_next(held.data, part) for part in ("train", "test"))
    assert train and test
    # of random letters, no five stand twice in a place of their own
    assert not pieces(train, 5) & pieces(test, 5)
    whole = build_federation(data, partition, clients, 0, seed=0)
    assert held.test.sizes.tolist() == [int(share * n) for n in whole.train.sizes]


def test_the_last_windows_are_held_out_and_as_few_as_overlap_them_left_out() -> None:
    """Two passages of 2,000 characters: 3,200 of A's are for training, of them 1,920 + 1,120 windows."""
    first, second = speech(2000), speech(2000, seed=1)
    data = next_characters("s", **plays(A=first, B=second) | {"role": np.array(["A", "A"])})
    for share, kept in (
        (0.25, windows(first) + windows(second)[: 1120 - 760 - 80]),
        (0.5, windows(first)[:1440]),
    ):
        held = build_federation(data, "natural", None, 0, seed=0, validation=share).data
        n = int(share * 3040)
        assert seen_and_next(held, "test") == (windows(first) + windows(second[:1200]))[-n:]
        assert seen_and_next(held, "train") == kept
        assert held.client_train is not None and len(held.client_train) == len(kept)


def test_a_share_that_leaves_no_text_to_train_on_is_an_error() -> None:
    data = next_characters("s", **plays(A=speech(410)))
    with pytest.raises(UserError, match=r"validation: 0\.9 leaves no window of text"):
        build_federation(data, "natural", None, 0, seed=0, validation=0.9)


@pytest.fixture
def real_plays() -> dict[str, np.ndarray]:
    path = data_directory(None) / "shakespeare.npz"
    if not path.is_file():
        pytest.skip(f"the real plays are not there: {path}")
    with np.load(path) as file:
        return {key: file[key] for key in ("text", "offset", "role")}


def test_the_real_plays_have_leafs_number_of_roles_and_samples(
    real_plays: dict[str, np.ndarray],
) -> None:
    text, offset = real_plays["text"].tobytes(), real_plays["offset"]
    samples = [len(clean(text[a:b])) - LENGTH for a, b in itertools.pairwise(offset)]
    assert sum(n > 0 for n in samples) == 1129
    assert sum(n for n in samples if n > 0) == 4_226_158


def test_fifty_of_the_real_roles_make_a_federation(real_plays: dict[str, np.ndarray]) -> None:
    federation = build_federation(next_characters("shakespeare", **real_plays), "natural", 50, 0, seed=0)
    assert federation.clients == 50
    assert min(federation.train.sizes) > 0 and min(federation.test.sizes) > 0
