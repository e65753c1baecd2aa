"""What a federation looks like before anything is trained: which classes are missing where (PCDD), how
unequal clients and classes are, which samples are there twice, and whether FedGELA is likely to help."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedgela.algorithms import FedGELA, mean_statistics
from fedgela.client_names import client_names
from fedgela.config import Experiment
from fedgela.data import Dataset, Federation
from fedgela.data.duplicates import Duplicates, find_duplicates
from fedgela.errors import printable
from fedgela.measures import adaptation_cost
from fedgela.notes import classes_worth_knowing, noted
from fedgela.resolve import resolve

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# the rules of thumb, see docs/inspect.md
FEW_MISSING = 0.05  # of the (client, class) cells: below, there is no PCDD to speak of
MANY_MISSING = 0.2  # from here on FedGELA was seen to help, but for skew with all clients in every round
UNEVEN = 10.0  # largest over smallest class of all clients together: above, the paper's Phi was far behind
BALANCED = 3.0  # largest over smallest class of the median client: up to here the paper's Phi is advised
RARE = 0.05  # chance that no client of a round has a given class: from here on it is mentioned


@dataclass(frozen=True)
class Advice:
    """Whether FedGELA is likely to help, why, and with which settings; and warnings about the federation."""

    verdict: str  # likely, perhaps or unlikely
    reason: str
    settings: dict[str, str | float]  # of [algorithm]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """A federation's figures; arrays are by client, [N], or by client and class, [N, C]."""

    federation: Federation
    experiment: Experiment  # resolved
    client_names: list[str]  # natural clients' names or ids; empty where clients only have numbers
    method: FedGELA  # whose Phi and E_W the cost is computed with
    own_method: bool  # whether that is the experiment's own method, or else FedGELA with its defaults
    cost: Floats  # ||Phi_k W - W||
    duplicates: Duplicates
    notes: tuple[str, ...] = ()  # those that a run begins with, too

    @property
    def data(self) -> Dataset:
        return self.federation.data

    @property
    def name(self) -> str:
        return printable(self.data.name)

    @property
    def clients(self) -> int:
        return self.federation.clients

    @property
    def classes(self) -> int:
        return self.data.classes

    @cached_property
    def train_counts(self) -> Ints:
        return self.federation.train_counts.numpy()

    @cached_property
    def test_counts(self) -> Ints:
        return self.federation.test_counts.numpy()

    @property
    def class_names(self) -> list[str]:
        return self.data.printable_classes

    @cached_property
    def samples(self) -> Ints:
        return _sum(self.train_counts)

    @cached_property
    def test_samples(self) -> Ints:
        return _sum(self.test_counts)

    @cached_property
    def held(self) -> Ints:
        """Classes that a client has training samples of."""
        return _sum(self.train_counts > 0)

    @cached_property
    def missing(self) -> Floats:
        """Share of all classes that a client has no training sample of."""
        return 1 - self.held / self.classes

    @cached_property
    def imbalance(self) -> Floats:
        """Largest over smallest of the classes that a client has; NaN for a client without samples."""
        return _imbalance(self.train_counts)

    @cached_property
    def too_small(self) -> Mask:
        """Clients with fewer training samples than a batch."""
        return self.samples < self.experiment.batch_size

    @property
    def missing_cells(self) -> float:
        """Share of the (client, class) cells without a training sample."""
        return float((self.train_counts == 0).mean())

    @cached_property
    def disjoint_cells(self) -> float:
        """The share only of clients that train and classes that somebody has: what PCDD is about."""
        cells = self.train_counts[self.samples > 0][:, self.train_counts.sum(axis=0) > 0]
        return float((cells == 0).mean())

    @property
    def class_imbalance(self) -> float:
        """Largest over smallest class of all training samples together, of those that there are."""
        return float(_imbalance(self.train_counts.sum(axis=0, keepdims=True))[0])

    @property
    def tested_unseen(self) -> int:
        """(client, class) cells with test samples and no training sample."""
        return int(((self.test_counts > 0) & (self.train_counts == 0)).sum())

    @property
    def W_norm(self) -> float:
        """||W|| = sqrt(E_W C): what the cost is to be compared with."""
        return math.sqrt(self.classes) * math.sqrt(self.method.E_W or 0.0)

    @cached_property
    def round_misses_class(self) -> float:
        """Chance that none of a round's K clients has a class, as the mean over classes that somebody has."""
        able = int((self.samples > 0).sum())
        K = min(self.experiment.sample or able, able)
        holders = (self.train_counts > 0).sum(axis=0)
        chances = []
        for h in holders[holders > 0].tolist():
            # the chance that all K are drawn from the able - h others, C(able - h, K) / C(able, K), as a
            # product of K factors or, by symmetry, of h: whichever are fewer
            few, many = sorted((K, h))
            i = np.arange(few)
            chances.append(float(np.prod(np.clip((able - many - i) / (able - i), 0, 1))))
        return float(np.mean(chances))

    @property
    def is_sampled(self) -> bool:
        """Whether only some of the clients train in a round."""
        return self.experiment.sample is not None and self.experiment.sample < self.clients

    @cached_property
    def median_imbalance(self) -> float:
        """The median over clients with at least two classes, which alone can be unbalanced; 1 without any."""
        several = self.imbalance[self.held >= 2]
        return float(np.median(several)) if len(several) else 1.0

    @cached_property
    def advice(self) -> Advice:
        return advise(self)


def inspect(experiment: Experiment) -> Inspection:
    """Load and split the data as a run of this experiment would, and look at it. Needs no GPU."""
    resolved, federation = resolve(experiment.with_(device="cpu"))
    assert resolved.partition is not None, "a resolved experiment has one"
    return inspect_federation(resolved, federation, noted(experiment, resolved.partition, federation))


def inspect_federation(
    experiment: Experiment, federation: Federation, notes: Iterable[str] = ()
) -> Inspection:
    method = experiment.algorithm
    own = isinstance(method, FedGELA) and method.etf and method.adapt
    if not (isinstance(method, FedGELA) and own):
        method = FedGELA()
    counts = federation.train_counts
    phi = method.client_vectors(counts, mean_statistics(method, counts))["phi"]
    return Inspection(
        federation=federation,
        experiment=experiment,
        client_names=client_names(experiment, federation),
        method=method,
        own_method=own,
        # every classifier vector of the ETF has length sqrt(E_W)
        cost=math.sqrt(method.E_W or 0.0) * adaptation_cost(phi).numpy(),
        duplicates=find_duplicates(federation),
        notes=(*notes, *classes_worth_knowing(federation)),
    )


def _sum(cells: Ints | Mask) -> Ints:
    """Sums over classes: [N] of [N, C]."""
    return np.asarray(cells.sum(axis=1), dtype=np.int64)


def _imbalance(counts: Ints) -> Floats:
    largest = counts.max(axis=1)
    smallest = np.where(counts > 0, counts, np.iinfo(np.int64).max).min(axis=1)
    return np.where(largest > 0, largest / smallest, np.nan)


# -- advice ----------------------------------------------------------------------------------------


def advise(found: Inspection) -> Advice:
    """Rules of thumb; docs/inspect.md states them, and docs/findings.md the figures they rest on."""
    missing, ratio = found.disjoint_cells, found.median_imbalance
    digits = 1 if ratio < 10 else 0
    share = "under 1%" if 0 < missing < 0.01 else f"{missing:.0%}"
    cells = f"{share} of (client, class) cells are missing"
    balance = f"the median client's largest class is {ratio:,.{digits}f} times its smallest"
    # where clients are sampled, even lengths were level with the paper's at first, and behind in the end
    uneven = found.class_imbalance > UNEVEN
    even = uneven or (ratio > BALANCED and not found.is_sampled)
    settings: dict[str, str | float] = {"phi": "even" if even else "power:1", "E_W": 10.0}
    few = f"only {cells}" if missing else "no client lacks a class"
    if missing < FEW_MISSING and ratio <= BALANCED and not found.is_sampled:
        return Advice("unlikely", f"{few} and {balance}: FedAvg is fine", {}, _warnings(found, False))
    if found.classes == 2:
        reason = (
            "of two classes the paper's Phi has no effect, and on small data it was level with FedAvg or "
            "behind; compare FedAvg with FedRoD and FedPrior, whose class shares beside the logits have one"
        )
        return Advice("unlikely", reason, {}, _warnings(found, True))
    if missing < FEW_MISSING:
        verdict, reason = "perhaps", f"{few} and {balance}"
    elif missing < MANY_MISSING:
        verdict, reason = "perhaps", f"{cells} and {balance}; so few missing were hardly tried"
    elif ratio <= BALANCED:
        verdict, reason = "likely", f"{cells} and {balance}, balanced as the paper's Phi expects"
    elif found.is_sampled:
        verdict, reason = "likely", f"{cells} and {balance}"
    else:
        verdict, reason = "perhaps", f"{cells} and {balance}, which even lengths often bear better"
    if uneven:
        overall = (
            f"of all clients together the largest class is {found.class_imbalance:,.0f} times the smallest"
        )
        reason += f"; {overall}, which the paper's Phi does not bear"
    if found.is_sampled and not uneven:
        reason += "; where some of the clients train in a round, it was ahead with the paper's Phi"
    elif verdict == "perhaps":
        reason += "; compare it with FedAvg"
    return Advice(verdict, reason, settings, _warnings(found, True))


def _warnings(found: Inspection, fedgela: bool) -> tuple[str, ...]:
    """What else to set or to look at; `fedgela` adds warnings that only matter to FedGELA."""
    e, lines = found.experiment, list(found.notes)
    small = found.too_small & (found.samples > 0)
    if small.any():
        fits = int(np.median(found.samples[found.samples > 0]))
        advice = f"; batch_size = {fits} would fit half of all clients" if 1 < fits < e.batch_size else ""
        lines.append(
            f"{small.sum():,} of {found.clients:,} clients hold less than one batch of {e.batch_size}, and "
            f"train on one batch of all they have{advice}"
        )
    if (found.samples == 0).any():
        lines.append(f"{_clients(int((found.samples == 0).sum()))} no training samples and never train")
    if (found.test_samples == 0).any():
        count = int((found.test_samples == 0).sum())
        lines.append(f"{_clients(count)} no test samples and will be left out of PA")
    if found.round_misses_class >= RARE:
        lines.append(
            f"with {e.sample} of {found.clients:,} clients a round, a class has no client in "
            f"{found.round_misses_class:.0%} of rounds: a larger sample sees more classes"
        )
    if fedgela:
        if e.projection is not None and e.projection < found.classes:
            lines.append(f"projection = {e.projection} is too small for an ETF: at least {found.classes}")
        if found.tested_unseen:
            lines.append(
                f"(client, class) cells that are tested without a training sample: {found.tested_unseen:,}; "
                "with phi_floor above 0 a class that a client lacks stays predictable there"
            )
    if found.duplicates.test_in_train:
        lines.append("test samples are also trained on: accuracies will be too high")
    return tuple(lines)


def _clients(count: int) -> str:
    return f"{count} client has" if count == 1 else f"{count:,} clients have"
