"""Shakespeare as LEAF has it: from 80 characters of a role's text, predict the next one.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018; with its vocabulary and its clean-up of white
space. The split is in time: what a role says first is for training, what it says last is for testing. Windows
drawn at random would overlap across the split.
"""

import re

import numpy as np
import numpy.typing as npt

from fedgela.data.arrays import make_dataset
from fedgela.data.dataset import Dataset
from fedgela.errors import UserError

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
TEXT = {"text", "offset", "role"}  # the arrays in the .npz file of such a data set
LENGTH = 80  # characters from which the next one is predicted
TRAIN_SHARE = 0.8
_UNKNOWN = 255
_TOKEN = np.full(256, _UNKNOWN, dtype=np.uint8)
_TOKEN[np.frombuffer(LETTERS.encode("ascii"), dtype=np.uint8)] = np.arange(len(LETTERS))


def next_characters(name: str, text: np.ndarray, offset: np.ndarray, role: np.ndarray) -> Dataset:
    """A data set of windows of LENGTH characters, labelled with the character after each. Passage i is
    text[offset[i]:offset[i + 1]], said by role[i]; roles are the clients.

    The first 80 % of a role's characters are for training, the rest for testing, and no window reaches
    across the cut. A role too short for one window on either side is left out.
    """
    if text.ndim != 1 or text.dtype != np.uint8 or role.ndim != 1 or offset.shape != (len(role) + 1,):
        raise UserError("text must be uint8 characters, and offset one longer than role")
    if len(text) == 0 or offset.dtype.kind not in "iu" or not _bounds(offset, len(text)):
        raise UserError("offset must run from 0 to the length of text, never down")
    names, speaker = np.unique(role.astype(str), return_inverse=True)
    x: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    client: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    kept: list[str] = []
    passages_of = np.split(np.argsort(speaker, kind="stable"), np.cumsum(np.bincount(speaker))[:-1])
    for k, passages in enumerate(passages_of):
        tokens = [_tokens(text[offset[i] : offset[i + 1]].tobytes(), names[k]) for i in passages]
        train, test = _cut(tokens)
        if len(train) and len(test):
            for part, windows in (("train", train), ("test", test)):
                x[part].append(windows)
                client[part].append(np.full(len(windows), len(kept)))
            kept.append(str(names[k]))
    if not kept:
        raise UserError(f"no role's text is long enough for windows of {LENGTH} characters")
    all_train, all_test = np.concatenate(x["train"]), np.concatenate(x["test"])
    return make_dataset(
        name,
        all_train[:, :LENGTH],
        all_train[:, LENGTH],
        all_test[:, :LENGTH],
        all_test[:, LENGTH],
        client_train=np.concatenate(client["train"]),
        client_test=np.concatenate(client["test"]),
        vocabulary=len(LETTERS),
        class_names=tuple(LETTERS),
        client_names=tuple(kept),
    )


def _bounds(offset: np.ndarray, end: int) -> bool:
    return bool(offset[0] == 0 and offset[-1] == end and (offset[1:] >= offset[:-1]).all())


def clean(passage: bytes) -> bytes:
    """LEAF's clean-up: one line, and no two blanks in a row."""
    return re.sub(rb"  +", b" ", passage.replace(b"\n", b" "))


def _tokens(passage: bytes, role: str) -> npt.NDArray[np.uint8]:
    passage = clean(passage)
    tokens = _TOKEN[np.frombuffer(passage, dtype=np.uint8)]
    strange = np.flatnonzero(tokens == _UNKNOWN)
    if len(strange):
        raise UserError(f"role {role}: the byte {passage[strange[0]]} is none of LEAF's 80 characters")
    return tokens


def _cut(passages: list[npt.NDArray[np.uint8]]) -> tuple[np.ndarray, np.ndarray]:
    """Training and test windows [n, LENGTH + 1] of a role's passages, cut after 80 % of its characters."""
    left = int(TRAIN_SHARE * sum(map(len, passages)))
    train, test = [], []
    for tokens in passages:
        train.append(_windows(tokens[:left]))
        test.append(_windows(tokens[left:]))
        left -= min(left, len(tokens))
    return np.concatenate(train), np.concatenate(test)


def _windows(tokens: npt.NDArray[np.uint8]) -> np.ndarray:
    if len(tokens) <= LENGTH:
        return np.empty((0, LENGTH + 1), dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)
