"""pfl-research: its simulation in one process, users' tensors normalised and on the device beforehand.

pfl makes a user's batches once and does not shuffle them again, trains on a ragged last batch too, and
averages parameters only (no BatchNorm statistics). Several processes need its launcher (torchrun).
"""

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.bench.plain import EVALUATION_BATCH, Samples
from fedgela.bench.turns import InTurns
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.nets import initial_net


class Pfl(InTurns):
    includes = "training, average, global model on the test set, local models on their clients' test sets"

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        super().__init__(experiment, federation)
        os.environ["PFL_PYTORCH_DEVICE"] = str(self.device)
        self.net = _WithLoss(initial_net(experiment, federation.data).to(experiment.device))

    @property
    def samples(self) -> int:
        return self.experiment.epochs * int(self.federation.train.sizes.sum())

    def simulate(self, end_of_round: Callable[[], None]) -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())  # pfl asks the thread that it runs in for one
        e, data = self.experiment, self.federation.data
        clients = range(self.federation.clients)
        train = Samples(data.x_train, data.y_train, *data.statistics, self.device)
        test = Samples(data.x_test, data.y_test, *data.statistics, self.device)

        train_of = [train.batch(self.federation.train[k].to(self.device)) for k in clients]
        users = [Dataset(samples, user_id=str(k)) for k, samples in enumerate(train_of)]
        tests = [Dataset(test.batch(self.federation.test[k].to(self.device))) for k in clients]
        union = Dataset(test.batch(torch.arange(len(data.y_test), device=self.device)))
        in_batches = NNEvalHyperParams(local_batch_size=EVALUATION_BATCH)

        class Scored(FederatedAveraging):  # type: ignore[misc]
            """pfl's FedAvg, with each local model scored on its user's test samples."""

            def train_one_user(self, initial: Any, model: Any, user_dataset: Any, context: Any) -> Any:
                update, metrics = super().train_one_user(initial, model, user_dataset, context)
                own = tests[int(user_dataset.user_id)]
                if len(own):
                    metrics |= model.evaluate(own, lambda n: StringMetricName(f"local | {n}"), in_batches)
                return update, metrics

        class EndOfRound(TrainingProcessCallback):  # type: ignore[misc]
            def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
                end_of_round()
                return False, Metrics()

        def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr, e.momentum, weight_decay=e.weight_decay)

        order = itertools.cycle(range(len(users)))  # every round takes every user once
        Scored().run(
            NNAlgorithmParams(
                central_num_iterations=10**6,
                evaluation_frequency=10**6,  # pfl's own evaluation of users is on their training samples
                train_cohort_size=len(users),
                val_cohort_size=None,
            ),
            SimulatedBackend(
                training_data=FederatedDataset(lambda k: users[k], lambda: next(order)),
                val_data=None,
                postprocessors=[WeightByDatapoints()],
            ),
            PyTorchModel(self.net, sgd, torch.optim.SGD(self.net.parameters(), lr=1.0)),
            NNTrainHyperParams(
                local_num_epochs=e.epochs, local_learning_rate=e.lr, local_batch_size=e.batch_size
            ),
            in_batches,
            callbacks=[CentralEvaluationCallback(union, in_batches), EndOfRound()],
        )


class _WithLoss(nn.Module):
    """The net with the two functions that pfl asks of a model."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.eval()
        right = (self.net(x).argmax(dim=1) == y).sum().item()
        return {"accuracy": Weighted(right, len(y))}
