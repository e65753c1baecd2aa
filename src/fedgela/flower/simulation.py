"""`--engine flower-simulation`: rounds whose clients Flower runs on Ray, on this machine or on a cluster.

The round is the local one (server.py); only the clients' visits go through Flower. Every actor reads the data
once and plays whichever client a message names. A simulated client has no disk of its own: what it keeps
between rounds travels with the messages and lies in the run's folder, so that resuming is the same as ever.
"""

import logging
import os
import queue
import threading
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor

from fedgela.config import Experiment, parse_experiment
from fedgela.data import Federation
from fedgela.flower import client as playing
from fedgela.flower.carrier import content_of, payload_of
from fedgela.flower.wire import About, Groups, decode, encode, groups_of, visit_of
from fedgela.models import State
from fedgela.resolve import resolve
from fedgela.rounds import ClientStore, InMemoryStore, Progress, Visit
from fedgela.server import Server
from fedgela.training import Plan
from fedgela.training.choice import cores

SECONDS_TO_START = 300.0
_ONE_AT_A_TIME = threading.Lock()  # Ray and Flower keep globals: a second simulation would wait for ever


class SimulatedServer(Server):
    evaluates_apart = False  # clients are scored where they train

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        store: ClientStore | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(experiment, federation, store, note)
        self.text = self.experiment.to_toml()
        self.simulation: Simulation | None = None  # started when it is first needed

    def visits(self, progress: Progress, plan: Plan, clients: Sequence[int]) -> list[Visit]:
        server = progress.server
        questions = {k: self._question(k, plan.round, server.model, server.extra) for k in clients}
        visits = []
        for client, (groups, about) in self._ask(MessageType.TRAIN, questions).items():
            if self.keeps_models and "kept" in groups:
                self.store.put(client, groups["kept"])
            visits.append(self._here(visit_of(groups, client, about["samples"])))
        return visits

    def finetuned(
        self, model: State, round: int, clients: Sequence[int], norms: Mapping[int, State]
    ) -> tuple[Tensor, Tensor]:
        questions = {k: self._question(k, round, model, {}, norms.get(k, {})) for k in clients}
        right = torch.zeros_like(self.federation.test_counts)
        for client, (groups, _) in self._ask(MessageType.EVALUATE, questions).items():
            right[client] = groups["measures"]["right"]
        return right, self.federation.test_counts

    def _question(
        self, client: int, round: int, model: State, extra: State, norm: State | None = None
    ) -> bytes:
        last = (self.store.get(client) if self.keeps_models else None) or {}
        groups = {"model": self.travelling(model), "extra": extra, "last": last | (norm or {})}
        return encode(groups, {"experiment": self.text, "client": client, "round": round})

    def _here(self, visit: Visit) -> Visit:
        """Updates are aggregated on the server's device."""
        for state in (visit.update.model, visit.update.extra, visit.own_norm):
            state |= {name: value.to(self.device) for name, value in state.items()}
        return visit

    def _ask(self, kind: str, questions: dict[int, bytes]) -> dict[int, tuple[Groups, About]]:
        """Every client's answer, in the order of the clients; a simulated client that fails is a bug."""
        if self.simulation is None:
            gpus = 1.0 if self.device.type == "cuda" else 0.0
            self.simulation = Simulation(self.federation.clients, gpus)
        nodes = self.simulation.nodes
        messages = [
            Message(content_of(question), dst_node_id=nodes[client], message_type=kind)
            for client, question in questions.items()
        ]
        client_of = {nodes[client]: client for client in questions}
        answers: dict[int, tuple[Groups, About]] = {}
        for reply in self.simulation.grid.send_and_receive(messages):
            client = client_of[reply.metadata.src_node_id]
            if reply.has_error():
                raise RuntimeError(f"client {client} failed in Flower's simulation: {reply.error.reason}")
            answers[client] = decode(payload_of(reply.content))
        return dict(sorted(answers.items()))

    def close(self) -> None:
        if self.simulation is not None:
            self.simulation.close()
        super().close()


class Simulation:
    """Flower's own loop in a thread; its ServerApp only hands over the grid, and waits until it is closed."""

    def __init__(self, clients: int, gpus: float) -> None:
        self._grid: queue.Queue[Grid | BaseException] = queue.Queue()
        self._over = threading.Event()
        actors = min(clients, cores())
        self._backend = {
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / actors},
            "init_args": {"num_cpus": actors, "include_dashboard": False},
        }
        self._clients = clients
        self._closed = False
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise RuntimeError("a process can run one Flower simulation at a time")
        self._thread = threading.Thread(target=self._run, name="flower", daemon=True)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        for name in ("flwr", "ray._private.worker"):  # its thread is not the main one, which Ray warns of
            logging.getLogger(name).setLevel(logging.ERROR)
        self._thread.start()
        first = self._grid.get(timeout=SECONDS_TO_START)
        if isinstance(first, BaseException):
            raise RuntimeError("Flower's simulation did not start") from first
        self.grid: Grid = first
        while len(list(self.grid.get_node_ids())) < self._clients:
            if self._over.wait(0.05):
                raise RuntimeError("Flower's simulation ended before it began")
        self.nodes = sorted(self.grid.get_node_ids())

    def _run(self) -> None:
        app = ServerApp()

        @app.main()  # type: ignore[untyped-decorator, unused-ignore]
        def main(grid: Grid, context: Context) -> None:
            self._grid.put(grid)
            self._over.wait()

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run_simulation(app, client_app, self._clients, backend_config=self._backend)
        except BaseException as error:  # told to whoever waits for the grid
            self._grid.put(error)
        finally:
            self._over.set()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=60)
        if not self._closed:
            self._closed = True
            _ONE_AT_A_TIME.release()


# -- in an actor ---------------------------------------------------------------------------------------

client_app = ClientApp()


@client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    server, client, round, groups = _asked(message)
    visit = playing.visit(server, client, round, groups.get("model", {}), groups.get("extra", {}))
    kept = server.store.get(client) if server.keeps_models else None
    reply = encode(groups_of(visit) | {"kept": kept or {}}, {"samples": visit.update.samples})
    return Message(content_of(reply), reply_to=message)


@client_app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
def evaluate(message: Message, context: Context) -> Message:
    server, client, round, groups = _asked(message)
    right = playing.finetuned(server, client, round, groups.get("model", {}))
    return Message(content_of(encode({"measures": {"right": right}}, {})), reply_to=message)


def _asked(message: Message) -> tuple[Server, int, int, Groups]:
    groups, about = decode(payload_of(message.content))
    server, client = _in_actor(about["experiment"]), about["client"]
    last = groups.get("last")
    server.store = InMemoryStore({client: last} if last else {})
    return server, client, about["round"], groups


@lru_cache(maxsize=1)
def _in_actor(experiment: str) -> Server:
    """An actor reads the data once, and trains one client at a time on one thread."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    table = tomllib.loads(experiment) | {"engine": "lanes", "lanes": 1, "width": 1, "threads": 1}
    return Server(*resolve(parse_experiment(table)))
