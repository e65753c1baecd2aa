"""A site: one process that holds the data and the personal model, and answers what the server asks.

It is a `Server` with a federation in which only this site has data, so that it trains by the same code as a
local run. What it answers is checked against what the algorithm declares (outgoing.py), and what the site's
administrator opted in to share (sharing.py).
"""

import contextlib
import dataclasses
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fedgela
from fedgela.algorithms import Update
from fedgela.config import parse_experiment
from fedgela.data.dataset import Dataset
from fedgela.data.federation import make_federation
from fedgela.errors import UserError
from fedgela.files import write_atomically
from fedgela.flower import client as playing
from fedgela.flower import outgoing, sharing
from fedgela.flower.class_list import agreed, stripped
from fedgela.flower.masks import FIXED_POINT, Masker, Unmaskable, digest_of, share_of
from fedgela.flower.personal import Personal
from fedgela.flower.site_store import SiteStore
from fedgela.flower.terms import described
from fedgela.flower.wire import About, Groups, decode, encode, groups_of
from fedgela.models import State
from fedgela.resolve import device_of
from fedgela.rounds import Visit

JOINED_WITH = "data.txt"  # beside a run's personal models: which data the site joined the run with
# where and how a site computes is its own affair
OWN = ("engine", "lanes", "width", "compile", "threads", "data_dir", "weights")


class Refused(Exception):
    """The site does not answer this; the reason names nothing of its data."""


class Site:
    def __init__(
        self,
        federation: str,
        data: Dataset,
        state: Path,
        device: str = "auto",
        log: Callable[[str], None] = lambda text: None,
        share_classes: bool = False,
        classes: tuple[str, ...] = (),
        masked_only: bool = False,
    ) -> None:
        """`classes` is the list that the federation was made with; empty: names are collected. `masked_only`
        refuses to send an update that the server could read."""
        self.federation = federation  # its id
        self.data = data
        self.state = state
        self.device = str(device_of(device))
        self.log = log
        self.share_classes = share_classes
        self.classes = classes
        self.masked_only = masked_only
        self.masker = Masker()
        self._server: sharing.SiteServer | None = None
        self._made_from: object = None

    def answer(self, payload: bytes) -> bytes:
        """Whatever happens, something is answered, and no text of an exception leaves the site."""
        try:
            groups, about = decode(payload)
            return self._answer(groups, about)
        except (Refused, Unmaskable) as error:
            self.log(f"refused: {error}")
            return encode({}, {"error": str(error)})
        except outgoing.NotDeclared as error:
            self.log(f"not sent, since the algorithm does not declare it: {error}")
            return encode({}, {"error": "its answer held what the algorithm does not declare"})
        except Exception as error:  # of any kind: the server must hear of it
            self.log(_told(error))
            return encode({}, {"error": f"{type(error).__name__} (the site's own log tells more)"})

    def _answer(self, groups: Groups, about: About) -> bytes:
        self._check(about)
        task = str(about["task"])
        allowed: outgoing.Shapes = {}
        of_a_round = {"train": self._train, "score": self._score, "finetune": self._finetune}
        if task == "classes":
            reply = self._classes()
        elif task == "join":
            reply, allowed = self._join(about)
        elif task == "key":
            reply = {}, {"key": self.masker.new_key().hex()}
        elif task == "unmask":
            reply = self._unmask(about)
        elif task in of_a_round:
            server, k = self._server_for(groups, about), int(about["site"])
            reply = of_a_round[task](server, k, groups, about)
            allowed = outgoing.declared(server) if task == "train" else {}
        else:
            raise Refused(f"there is no task {task!r}")
        if self.share_classes:
            allowed = allowed | {sharing.GROUP: sharing.shapes(task, len(about["classes"]))}
        outgoing.check(task, *reply, allowed, listed=bool(self.classes))
        return encode(*reply, wire=about.get("wire", "fp32"))

    def _check(self, about: About) -> None:
        if about.get("federation") != self.federation:
            raise Refused("this site's folder is of another federation")
        if about.get("version") != fedgela.__version__:
            raise Refused(
                f"the server has fedgela {about.get('version')}, this site {fedgela.__version__}: "
                "install the same on both"
            )
        masks = "mask" in about if about["task"] == "train" else about.get("secure_aggregation")
        if self.masked_only and not masks:
            raise Refused("takes part only in runs with --secure-aggregation (--masked-only)")

    def _server_for(self, groups: Groups, about: About) -> sharing.SiteServer:
        """The same for a whole run; what it keeps between rounds is on disk."""
        normalisation = groups.get("normalisation", {})
        values = tuple(tuple(value.tolist()) for value in normalisation.values())
        of_run = (about[name] for name in ("run", "experiment", "sites", "site"))
        key = (*of_run, tuple(about["classes"]), values)
        if self._server is None or self._made_from != key:
            with self._told_here():
                self._server = self._make_server(about, normalisation)
            self.log(f"run {about['run']}: {described(self._server.experiment)}")
            self._made_from = key
        self._server.store = self._store(about)
        return self._server

    @contextlib.contextmanager
    def _told_here(self) -> Iterator[None]:
        """What is wrong with this site's data is told on the site."""
        try:
            yield
        except UserError as error:
            self.log(str(error))
            raise Refused("the experiment cannot be run there (the site's own log tells why)") from None

    def _make_server(self, about: About, normalisation: dict[str, Tensor]) -> sharing.SiteServer:
        table = tomllib.loads(about["experiment"])
        own = dict.fromkeys(OWN) | {"engine": "auto", "device": self.device}
        experiment = parse_experiment(table | own)
        data = self._data(about)
        joined_with = self._folder(about) / JOINED_WITH
        if joined_with.exists() and joined_with.read_text() != _identity(data):
            self.log("the data here is not what it was when this site joined the run")
            raise Refused(
                "its data is not what it was when it joined the run; it takes part with that data again, or "
                "with this once the run is resumed"
            )
        data = dataclasses.replace(data, augment=bool(experiment.augment))
        if normalisation:
            data = data.with_statistics(**normalisation)
        k, N = int(about["site"]), int(about["sites"])
        owners = [np.full(len(y), k, dtype=np.int64) for y in (data.y_train, data.y_test)]
        return sharing.SiteServer(experiment, make_federation(data, N, *owners), note=self.log)

    def _data(self, about: About) -> Dataset:
        """With its labels as places in the run's list of classes. Where the federation has a list, no other
        is taken: whether this site has classes beyond it would tell which it has."""
        classes = tuple(about["classes"])
        if self.classes and classes != self.classes:
            raise Refused("the run has another list of classes than this site's folder")
        return agreed(self.data, classes)

    def _store(self, about: About) -> SiteStore:
        return SiteStore(self._folder(about), int(about["round"]), int(about["visited"]))

    def _folder(self, about: About) -> Path:
        """Of what is kept here for this run."""
        run = str(about["run"])
        if not run.isalnum():
            raise Refused("a run's key has letters and digits only")
        return self.state / run

    # -- tasks -------------------------------------------------------------------------------------

    def _classes(self) -> tuple[Groups, About]:
        """Which classes there are here: the one question that a class list makes needless."""
        if self.classes:
            raise Refused("the federation has a list of classes: which of them a site has stays there")
        named = bool(self.data.class_names)
        names = list(stripped(self.data.class_names)) or [str(c) for c in range(self.data.classes)]
        self.log(f"told the server which classes there are here: {', '.join(names)}")
        return {}, {"classes": names, "named": named}

    def _join(self, about: About) -> tuple[tuple[Groups, About], outgoing.Shapes]:
        """How much data there is, of which shape, and the sums that all sites' inputs are normalised by."""
        with self._told_here():
            algorithm = parse_experiment(tomllib.loads(about["experiment"])).algorithm
            data = self._data(about)
        if (shared := algorithm.shares()) is not None:
            self.log(f"run {about['run']}: {algorithm.title} shares more than weights: {shared}")
        groups: Groups = {"sums": {}}
        if data.kind != "tokens":
            total, squares, _ = data.sums()
            groups["sums"] = {"total": total, "squares": squares}
        counts = torch.bincount(data.y_train, minlength=data.classes)
        statistics = algorithm.statistics(counts[None])
        groups["statistics"] = {name: value[0] for name, value in statistics.items()}
        reply = {
            "samples": len(data.y_train),
            "tested": len(data.y_test),
            "kind": data.kind,
            "shape": list(data.spec.shape),
            "vocabulary": data.vocabulary,
            "columns": data.spec.columns,
        }
        if self.share_classes:
            groups[sharing.GROUP] = sharing.counts_of(data)
        folder = self._folder(about)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / JOINED_WITH, _identity(data))
        allowed = outgoing.declared_at_join(algorithm, groups["sums"], data.classes)
        return (groups, reply), allowed

    def _train(
        self, server: sharing.SiteServer, k: int, groups: Groups, about: About
    ) -> tuple[Groups, About]:
        began = time.perf_counter()
        round = int(about["round"])
        self.log(f"round {round}: training begins")
        visit = playing.visit(server, k, round, groups.get("model", {}), groups.get("extra", {}))
        store = server.store
        assert isinstance(store, SiteStore)
        if server.keeps_models:
            self._personal(server, k, about, groups).write(store.folder)
        self.log(f"round {round}: trained in {time.perf_counter() - began:.1f} s")
        if store.lost:
            self.log(f"round {round}: the personal model of round {store.visited} was lost; started anew")
        sent = groups_of(without_classes(visit))
        if "mask" in about:
            sent["model"] = self._masked(visit.update, k, groups["model"], about)
        if self.share_classes:
            sent[sharing.GROUP] = server.shared_of_visit(visit, round)
        return sent, {
            "samples": visit.update.samples,
            "state_lost": store.lost,
            "seconds": float(f"{time.perf_counter() - began:.3f}"),
        }

    def _masked(self, update: Update, k: int, before: State, about: About) -> State:
        """The update as whole numbers of which only a sum can be read."""
        asked = about["mask"]
        keys = {int(site): bytes.fromhex(key) for site, key in asked["keys"].items()}
        change = {name: value - before[name].to(value.device) for name, value in update.model.items()}
        share = share_of(change, update.samples, asked["unit"], asked["clip"])
        masked = self.masker.mask(share, k, keys, FIXED_POINT[about["wire"]])
        self.log(f"round {about['round']}: masked among {len(keys)} sites, {digest_of(keys)}")
        return masked

    def _unmask(self, about: About) -> tuple[Groups, About]:
        seeds = self.masker.reveal(about["answered"])
        pairs = {str(site): seed.hex() for site, seed in seeds.pairs.items()}
        return {}, {"own": seeds.own.hex(), "pairs": pairs, "key": self.masker.new_key().hex()}

    def _personal(self, server: sharing.SiteServer, k: int, about: About, groups: Groups) -> Personal:
        """With which the model of this visit can be used on the site."""
        data, extra = server.federation.data, groups.get("extra", {})
        counts = server.federation.train_counts[k]
        return Personal(
            site=k,
            round=int(about["round"]),
            experiment=str(about["experiment"]),
            classes=tuple(about["classes"]),
            sample=data.spec,
            features=data.feature_names,
            data=data.fingerprint,
            normalisation=groups.get("normalisation", {}),
            vectors=server.algorithm.client_vectors(counts, extra) | extra,
        )

    def _score(
        self, server: sharing.SiteServer, k: int, groups: Groups, about: About
    ) -> tuple[Groups, About]:
        """The global model on the site's own test set."""
        progress = playing.progress_of(server, int(about["round"]), groups.get("model", {}), {})
        right = server.right_by_global(progress.server.model, k)
        sent = {"measures": {"right": right.sum()[None]}}
        if self.share_classes:
            sent[sharing.GROUP] = server.shared_of_score(right, progress.round)
        return sent, {}

    def _finetune(
        self, server: sharing.SiteServer, k: int, groups: Groups, about: About
    ) -> tuple[Groups, About]:
        right = playing.finetuned(server, k, int(about["round"]), groups.get("model", {}))
        return {"measures": {"right": right.sum()[None]}}, {}


def _told(error: Exception) -> str:
    """For the site's own log: a line where a file or the disk is to blame, else where in the code it was."""
    by_system = isinstance(error, OSError) and error.filename is not None
    return f"cannot answer: {error}" if by_system else traceback.format_exc()


def _identity(data: Dataset) -> str:
    """Of all that a run depends on; it stays here."""
    return f"{data.fingerprint} {data.spec}, columns {data.spec.columns}"


def without_classes(visit: Visit) -> Visit:
    """Only sums over all classes, and no personal head: neither would be the server's business."""
    return dataclasses.replace(
        visit,
        own_norm={},
        loss_sum=visit.loss_sum.sum()[None],
        loss_count=visit.loss_count.sum()[None],
        classifier=None,
        right=None if visit.right is None else visit.right.sum()[None],
        right_on_union=None,
        tracked=None,
    )
