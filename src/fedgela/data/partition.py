"""Who holds which sample.

A partition gives every training and every test sample to exactly one client: `owner[i]` is the client
of sample i (`natural` may leave out clients, with all their samples). A client's test samples follow the
same class proportions as its training samples, which is what a personal accuracy is about.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgela.data.split import places
from fedgela.errors import UserError, did_you_mean

Ints = npt.NDArray[np.int64]
Owners = Ints  # [n], the client of every sample
IID_BETA = 10_000.0  # the paper's "IID" is a Dirichlet distribution with this beta
MAX_TRIES = 1000


@dataclass(frozen=True)
class Scheme:
    """A partition as a config names it: dirichlet:BETA, classes:C, iid or natural."""

    kind: str
    value: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Scheme":
        kind, _, value = text.partition(":")
        if text in ("iid", "natural"):
            return cls(kind)
        try:
            if kind == "dirichlet" and 1e-9 <= float(value) <= 1e9:
                return cls(kind, float(value))
            if kind == "classes" and int(value) >= 1:
                return cls(kind, int(value))
        except ValueError:
            pass
        hint = did_you_mean(kind, ("dirichlet", "classes", "iid", "natural"))
        raise ValueError(
            "a partition is 'dirichlet:BETA' with BETA > 0, 'classes:C' with C >= 1 classes a client, "
            f"'iid' or 'natural', not {text!r}{hint if kind not in hint else ''}"
        )


def dirichlet(
    y_train: Ints,
    y_test: Ints,
    classes: int,
    clients: int,
    beta: float,
    min_samples: int,
    rng: np.random.Generator,
) -> tuple[Owners, Owners]:
    """Each class's samples are dealt in proportions drawn from Dir(beta), the same for train and test.

    Redrawn until every client has `min_samples` training samples, at most MAX_TRIES times.
    """
    name = "iid" if beta == IID_BETA else f"dirichlet:{beta:g}"
    per_class = np.bincount(y_train, minlength=classes)
    if clients * min_samples > len(y_train):
        raise UserError(
            f"partition {name}: {len(y_train)} training samples are too few to give {clients} clients "
            f"{min_samples} each; lower clients or min_samples (unless set, it is batch_size)"
        )
    for _ in range(MAX_TRIES):
        # cuts[c, k]: the share of class c that the clients up to k hold
        cuts = np.cumsum(_dirichlet_rows(beta, clients, classes, rng), axis=1)
        ends = np.rint(cuts * per_class[:, None]).astype(np.int64)
        sizes = np.diff(ends, axis=1, prepend=0).sum(axis=0)
        if sizes.min() >= min_samples:
            return _deal(y_train, cuts, rng), _deal(y_test, cuts, rng)
    smallest = ", ".join(str(size) for size in np.sort(sizes)[:10])
    raise UserError(
        f"partition {name}: in {MAX_TRIES} draws over {clients} clients none gave every "
        f"client {min_samples} training samples\nthe last draw's smallest clients have {smallest}; "
        "raise beta, or lower clients or min_samples (unless set, it is batch_size)"
    )


def _dirichlet_rows(
    beta: float, clients: int, classes: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """[classes, clients] proportions, each row from Dir(beta).

    Drawn as logarithms of gamma variables (G(b) = G(b+1) U^(1/b)), which do not underflow at small beta.
    """
    shape = (classes, clients)
    log_gamma = np.log(rng.standard_gamma(beta + 1.0, shape)) + np.log1p(-rng.random(shape)) / beta
    log_gamma -= log_gamma.max(axis=1, keepdims=True)
    rows: npt.NDArray[np.float64] = np.exp(log_gamma)
    rows /= rows.sum(axis=1, keepdims=True)
    return rows


def _deal(y: Ints, cuts: npt.NDArray[np.float64], rng: np.random.Generator) -> Owners:
    """Deal each class's samples, shuffled, to the clients; client k gets the share between cuts[c, k - 1] and
    cuts[c, k] of class c."""
    classes, clients = cuts.shape
    owner = np.empty(len(y), dtype=np.int64)
    for c, members in enumerate(_members(y, classes)):
        # rounded to the nearest: rounding down would give the last client a sample of nearly every class
        ends = np.rint(cuts[c] * len(members)).astype(np.int64)
        sizes = np.diff(ends, prepend=0)
        owner[rng.permutation(members)] = np.repeat(np.arange(clients), sizes)
    return owner


def _members(y: Ints, classes: int) -> list[Ints]:
    """The samples of every class, in order."""
    order = np.argsort(y, kind="stable")
    return np.split(order, np.cumsum(np.bincount(y, minlength=classes))[:-1])


def by_classes(
    y_train: Ints,
    y_test: Ints,
    classes: int,
    clients: int,
    per_client: int,
    rng: np.random.Generator,
) -> tuple[Owners, Owners]:
    """The paper's P{clients}C{per_client}: each client holds exactly `per_client` classes.

    Classes are dealt as evenly as possible (their numbers of holders differ by one at most), and a
    class's samples are split evenly among its holders.
    """
    name = f"partition classes:{per_client}"
    if per_client > classes:
        raise UserError(f"{name}: the data has only {classes} classes")
    if clients * per_client < classes:
        raise UserError(
            f"{name}: {clients} clients with {per_client} classes each cannot hold all {classes} classes"
        )
    holds = deal_classes(classes, clients, per_client, rng)
    per_class = np.bincount(y_train, minlength=classes)
    for c in range(classes):
        holders = int(holds[:, c].sum())
        if per_class[c] < holders:
            mend = "lower clients or the classes a client" if per_class[c] else "it cannot be dealt"
            raise UserError(
                f"{name}: class {c} has {per_class[c]} training samples for {holders} clients; {mend}"
            )
    return _deal_evenly(y_train, holds, rng), _deal_evenly(y_test, holds, rng)


def _deal_evenly(y: Ints, holds: npt.NDArray[np.bool_], rng: np.random.Generator) -> Owners:
    """Deal each class's samples, shuffled, to its holders; chance decides which of them get one more."""
    owner = np.empty(len(y), dtype=np.int64)
    for c, members in enumerate(_members(y, holds.shape[1])):
        holders = rng.permutation(np.flatnonzero(holds[:, c]))  # the first ones get one sample more
        parts = np.array_split(rng.permutation(members), len(holders))
        for client, part in zip(holders, parts, strict=True):
            owner[part] = client
    return owner


def deal_classes(
    classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """holds[k, c]: whether client k holds class c.

    Client after client takes the classes with the fewest holders, ties broken at random: the numbers
    of holders then never differ by more than one.
    """
    holds = np.zeros((clients, classes), dtype=bool)
    holders = np.zeros(classes)
    for client in range(clients):
        taken = np.lexsort((rng.random(classes), holders))[:per_client]
        holds[client, taken] = True
        holders[taken] += 1
    return holds[rng.permutation(clients)]


LEFT_OUT = -1  # the owner of a sample of a natural client that was not drawn


def natural(
    ids_train: npt.NDArray[np.integer],
    ids_test: npt.NDArray[np.integer],
    clients: int | None,
    rng: np.random.Generator,
    names: tuple[str, ...] = (),
) -> tuple[Owners, Owners, int]:
    """Owners of the training and of the test samples, clients being those of the data, numbered in the order
    of their ids; and how many there are.

    If `clients` is less than the data has, so many are drawn, and the samples of the others are LEFT_OUT
    (LEAF: 50 writers of 3,500). If it is more, clients are split (the paper: 20 clients of 6 centres), and a
    client's training and test samples are dealt evenly to its parts.
    """
    ids, train = np.unique(ids_train, return_inverse=True)
    test = np.searchsorted(ids, ids_test).clip(max=len(ids) - 1)
    unknown = np.unique(ids_test[ids[test] != ids_test])
    if len(unknown):
        name = names[unknown[0]] if names else unknown[0]
        raise UserError(
            f"partition natural: client {name} has test samples but no training samples"
            + (f" (and {len(unknown) - 1} more clients)" if len(unknown) > 1 else "")
        )
    found = len(ids)
    clients = found if clients is None else clients
    if clients <= found:
        number = np.full(found, LEFT_OUT, dtype=np.int64)
        number[np.sort(rng.permutation(found)[:clients])] = np.arange(clients)
        return number[train], number[test], clients
    if clients > len(train):
        raise UserError(f"clients: {clients} are more than the {len(train)} training samples")
    parts = split_largest(np.bincount(train), clients)
    first = np.cumsum(parts) - parts
    return _deal_parts(train, first, parts, rng), _deal_parts(test, first, parts, rng), clients


def split_largest(sizes: Ints, clients: int) -> Ints:
    """How many parts each client of these sizes is split into: whoever has the largest parts gets one part
    more, until there are `clients` parts in all."""
    parts = [1] * len(sizes)
    heap = [(-float(size), k) for k, size in enumerate(sizes)]
    heapq.heapify(heap)
    for _ in range(clients - len(sizes)):
        _, k = heap[0]
        parts[k] += 1
        heapq.heapreplace(heap, (-sizes[k] / parts[k], k))
    return np.array(parts, dtype=np.int64)


def _deal_parts(natural_owner: Owners, first: Ints, parts: Ints, rng: np.random.Generator) -> Owners:
    """Deal every natural client's samples, shuffled, in turn to its parts: client k's are the new clients
    first[k], first[k] + 1, ..., parts[k] of them."""
    order = np.lexsort((rng.random(len(natural_owner)), natural_owner))
    sizes = np.bincount(natural_owner, minlength=len(parts))
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = np.repeat(first, sizes) + places(sizes) % np.repeat(parts, sizes)
    return owner
