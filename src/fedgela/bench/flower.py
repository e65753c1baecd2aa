"""Flower's simulation: the message API, Ray behind it, an actor a core (or as many to share a GPU).

A client trains and scores by the plain loop's own code. It sends its local accuracy with its model, which
spares Flower a second stage of messages; the server evaluates the global model by `evaluate_fn`.
"""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from fedgela.flower import QUIET

os.environ.update({**QUIET, **os.environ})  # before flwr and ray are imported

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedgela.bench.plain import Plain, state_of
from fedgela.bench.turns import InTurns
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.resolve import resolve


class Flower(InTurns):
    includes = "messages, training, local models on their clients' test sets, average, global model"
    threaded = False  # an actor a core, one thread each

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        super().__init__(experiment, federation)
        self.server = Plain(experiment, federation)  # its net and its test set
        text = experiment.to_toml()
        client_app = ClientApp()

        @client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
        def train(message: Message, context: Context) -> Message:
            return train_one(text, message, context)

        self.client_app = client_app

    def simulate(self, end_of_round: Callable[[], None]) -> None:
        server, clients = self.server, len(self.server.clients)
        server_app = ServerApp()

        @server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
        def main(grid: Grid, context: Context) -> None:
            def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
                if round == 0:
                    return None  # before the first
                server.net.load_state_dict(arrays.to_torch_state_dict())
                result = MetricRecord({"accuracy": server.accuracy(server.union)})
                end_of_round()
                return result

            strategy = Strict(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
            strategy.start(grid, ArrayRecord(server.model), num_rounds=10**6, evaluate_fn=evaluate)

        actors = min(clients, os.cpu_count() or 1)
        gpus = 1 / actors if self.device.type == "cuda" else 0.0
        run_simulation(
            server_app,
            self.client_app,
            num_supernodes=clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": gpus}},
        )


class Strict(FedAvg):  # type: ignore[misc, unused-ignore]
    """FedAvg that ends at a client's error: rounds without all clients would look fast."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        return super().aggregate_train(server_round, replies)


def train_one(experiment: str, message: Message, context: Context) -> Message:
    """A client's work, in a Ray actor."""
    plain = _in_actor(experiment)
    client = int(context.node_config["partition-id"])
    plain.net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    plain.train_client(client)
    own = plain.test_of[client]
    metrics = MetricRecord(
        {
            "num-examples": len(plain.train_of[client]),
            "accuracy": plain.accuracy(own) if len(own) else 0.0,
        }
    )
    content = RecordDict({"arrays": ArrayRecord(state_of(plain.net)), "metrics": metrics})
    return Message(content=content, reply_to=message)


@lru_cache(maxsize=1)
def _in_actor(experiment: str) -> Plain:
    """An actor reads the data once, and keeps it on its device."""
    import tomllib

    from fedgela.config import parse_experiment

    torch.set_num_threads(1)
    return Plain(*resolve(parse_experiment(tomllib.loads(experiment))))
