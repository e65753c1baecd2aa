"""Bytes between clients and server, and rounds to reach FedAvg's best GA (the paper's Table 9)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgela.algorithms import FedAvg, travelling
from fedgela.evaluation import Record, best_and_last
from fedgela.models import State

N_K_BYTES = 8  # n_k, an int64 beside every update


@dataclass(frozen=True)
class Traffic:
    """Bytes, as the tensors lie in memory: neither compressed nor wrapped for a network."""

    up: int  # a client's update, in a round
    down: int  # what a client gets from the server, in a round
    once: int = 0  # what every client sends before the first round


def state_bytes(state: State) -> int:
    return sum(value.nbytes for value in state.values())


def traffic(
    algorithm: FedAvg,
    model: State,
    counts: Tensor,
    d: int,
    seed: int = 0,
    stays: Collection[str] = (),
) -> Traffic:
    """What one client sends and gets, by what the method says that travels.

    `model` is a model's state, `counts` [C] a client's class counts, d the features' dimension; `stays`
    are entries that are a client's own whatever the method (BatchNorm under `batchnorm = "local"`). A
    fixed ETF does not travel: everybody makes it from the seed.
    """
    if algorithm.pooled:  # no federation, no messages
        return Traffic(0, 0)

    def features() -> tuple[Tensor, Tensor]:  # one sample's: the size of what is sent does not depend on it
        return torch.zeros(1, d), torch.zeros(1, dtype=torch.int64)

    statistics = {name: value.float() for name, value in algorithm.statistics(counts[None]).items()}
    sent = algorithm.sends(counts, features)
    extra = algorithm.initial_extra(d, len(counts), seed) | {k: v[0] for k, v in statistics.items()}
    weights = state_bytes(travelling(algorithm, model, stays))
    up = weights + state_bytes(sent)
    return Traffic(
        up=up + N_K_BYTES if up else 0,
        down=weights + state_bytes(extra),
        once=state_bytes(statistics),
    )


def total_traffic(per_client: Traffic, records: Iterable[Record], clients: int) -> tuple[int, int]:
    """Bytes up and down over all rounds of a run with so many clients, from who took part in each round."""
    visits = sum(len(record.get("clients", ())) for record in records)
    return visits * per_client.up + clients * per_client.once, visits * per_client.down


def reaching_fedavg(
    runs: Mapping[int, Sequence[Record]], fedavg: Mapping[int, Sequence[Record]]
) -> dict[int, tuple[int | None, float | None]]:
    """The first round with at least FedAvg's best GA, and the speed-up, for every seed that both were run on;
    None ('-' in tables) where the method never gets there.

    The speed-up is FedAvg's own such round, in which it was best, over the method's. (The paper's table takes
    FedAvg's last round in every setting.)
    """
    found: dict[int, tuple[int | None, float | None]] = {}
    for seed in sorted(runs.keys() & fedavg.keys()):
        GA = best_and_last(fedavg[seed], "GA")
        if GA is not None:
            there = (r["round"] for r in runs[seed] if r.get("GA") is not None and r["GA"] >= GA["best"])
            rounds = next(there, None)
            found[seed] = rounds, None if rounds is None else GA["best_round"] / rounds
    return found
