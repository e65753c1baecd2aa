"""Sites and a server in one process: Flower's grid is played, so that every byte between them can be seen."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedgela.config import Experiment
from fedgela.data import load_dataset
from fedgela.evaluation import Record
from fedgela.flower.carrier import content_of, payload_of
from fedgela.flower.exchange import Exchange
from fedgela.flower.federated_server import FederatedServer, Terms
from fedgela.flower.server_app import Gathering
from fedgela.flower.site import Site
from fedgela.flower.terms import RELEASES
from fedgela.models import State
from helpers import tiny, tiny_arrays

CLASSES = ("cat", "cow", "dog", "hen")
HOLDINGS = ((0, 1), (1, 2), (2, 3))  # the classes of each site
Tamper = Callable[[bytes], bytes | None]  # None: no answer


def write_data(folder: Path, named: bool = False, holdings: Sequence[Sequence[int]] = HOLDINGS) -> Path:
    """whole.npz with natural clients, and site-0.npz ... with each client's samples in the same order."""
    arrays = tiny_arrays(train=84, test=48)
    owners = {}
    for part in ("train", "test"):
        y = arrays[f"y_{part}"]
        owner = np.empty(len(y), dtype=np.int64)
        for c in range(len(CLASSES)):
            holders = [k for k, classes in enumerate(holdings) if c in classes]
            mine = np.flatnonzero(y == c)
            owner[mine] = np.resize(holders, len(mine))
        owners[part] = owner
    names = {"class_names": np.array(CLASSES)} if named else {}
    ids = {"client_train": owners["train"], "client_test": owners["test"]}
    np.savez(folder / "whole.npz", **arrays, **ids, **names)
    for k in range(len(holdings)):
        own = {f"{x}_{part}": arrays[f"{x}_{part}"][owners[part] == k] for x in "xy" for part in owners}
        np.savez(folder / f"site-{k}.npz", **own, **names)
    return folder / "whole.npz"


class PlayedGrid:
    """Answers at once, by the sites themselves; `tamper` may change what a site answers."""

    def __init__(self, sites: dict[int, Site]) -> None:
        self.sites = sites
        self.offline: set[int] = set()
        self.tamper: dict[int, Tamper] = {}
        self.removed: set[int] = set()
        self.unreadable: set[int] = set()  # whose answers Flower cannot take apart
        self.seen: list[tuple[int, bytes, bytes]] = []  # (site, question, answer)
        self._replies: dict[str, Any] = {}

    def get_node_ids(self) -> list[int]:
        return [100 + site for site in self.sites if site not in self.offline]

    def create_message(self, content: Any, message_type: str, dst_node_id: int, group_id: str) -> Any:
        return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            site = message.metadata.dst_node_id - 100
            if site in self.removed:
                ids.append("")
                continue
            ids.append(f"message {len(self._replies)}")
            question = payload_of(message.content)
            answer: bytes | None = self.sites[site].answer(question)
            assert answer is not None
            self.seen.append((site, question, answer))
            if site in self.tamper:
                answer = self.tamper[site](answer)
            self._replies[ids[-1]] = None if answer is None else self._reply(ids[-1], answer)
            if site in self.unreadable:
                self._replies[ids[-1]] = KeyError("Nope")
        return ids

    def _reply(self, id: str, answer: bytes) -> Any:
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=id),
            has_error=lambda: False,
            content=content_of(answer),
        )

    def answer_late(self, id: str) -> None:
        self._replies[id] = self._reply(id, b"")

    def leave_unanswered(self, id: str) -> None:
        self._replies[id] = None

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        found = [self._replies[id] for id in ids if self._replies[id] is not None]
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        return found


class Played:
    """A federation of three sites and its server."""

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        test_data: Path | None = None,
        suffix: str = ".npz",
        **terms: Any,
    ):
        self.folder, self.experiment, self.test_data = folder, experiment, test_data
        self.suffix = suffix
        self.logs: list[str] = []
        self.notes: list[str] = []
        self.recalled: Path | None = None  # what an earlier server of the run agreed on
        self.records: list[Record] = []  # and its rounds
        self.terms = Terms(
            **{
                "federation": "f00d",
                "run": "1",
                "sites": ("north", "east", "south"),
                "classes": CLASSES,
                "round_seconds": 0.3,
                "wait_seconds": 0.3,
            }
            | terms
        )
        self.grid = PlayedGrid({k: self.site(k) for k in range(len(HOLDINGS))})

    def site(self, k: int) -> Site:
        data = load_dataset(str(self.folder / f"site-{k}{self.suffix}"))
        state, classes = self.folder / f"state-{k}", self.terms.classes
        return Site("f00d", data, state, "cpu", self.logs.append, classes=classes)

    def server(self) -> FederatedServer:
        nodes = {100 + k: k for k in range(len(HOLDINGS))}
        exchange = Exchange(self.grid, nodes)  # type: ignore[arg-type]
        data = None if self.test_data is None else str(self.test_data)
        gathering = Gathering(
            exchange, self.terms, self.experiment, data, self.notes.append, self.folder / RELEASES
        )
        if self.recalled is not None:
            gathering.recall(self.recalled, self.records)
        return gathering.server()


def small(whole: Path, **changes: Any) -> Experiment:
    return tiny(
        whole, **{"partition": "natural", "clients": 3, "rounds": 3, "algorithm": "fedgela"} | changes
    )


def assert_close(a: State, b: State) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
