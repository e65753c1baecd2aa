"""fluke: its FedAVG over its own loaders of tensors, normalised and on the device beforehand.

fluke trains on a ragged last batch too (but not on a single sample), and keeps a client's optimiser from
round to round.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgela.bench.plain import EVALUATION_BATCH, Samples
from fedgela.bench.turns import InTurns
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.nets import initial_net


class Fluke(InTurns):
    includes = "training, local models on their clients' test sets (post_fit), average, global model (server)"

    @property
    def samples(self) -> int:
        e = self.experiment
        sizes: list[int] = self.federation.train.sizes.tolist()
        return e.epochs * sum(n - (n % e.batch_size == 1) for n in sizes)

    def simulate(self, end_of_round: Callable[[], None]) -> None:
        _make_torchvision_importable()
        from fluke import DDict, FlukeENV
        from fluke.algorithms.fedavg import FedAVG
        from fluke.evaluation import ClassificationEval
        from fluke.utils import FederationObserver
        from torchmetrics import Accuracy

        class EndOfRound(FederationObserver):  # type: ignore[misc, unused-ignore]
            def end_round(self, round: int) -> None:
                end_of_round()

        e, classes = self.experiment, self.federation.data.classes
        environment = FlukeENV()
        environment.set_seed(e.seed)
        environment.set_device(e.device)
        environment.set_inmemory(True)
        environment.set_eval_cfg(pre_fit=False, post_fit=True, locals=False, server=True)
        # accuracy alone, as the others measure it, instead of seven metrics
        accuracy = Accuracy(task="multiclass", num_classes=classes, top_k=1)
        environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=classes, accuracy=accuracy))
        federated = FedAVG(
            self.federation.clients,
            _Splitter(e, self.federation),
            DDict(
                model=initial_net(e, self.federation.data),  # fluke moves it for the time of its use
                client=DDict(
                    batch_size=e.batch_size,
                    local_epochs=e.epochs,
                    loss="CrossEntropyLoss",
                    optimizer=DDict(name="SGD", lr=e.lr, momentum=e.momentum, weight_decay=e.weight_decay),
                    scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
                ),
                server=DDict(weighted=True),
            ),
        )
        federated.set_callbacks(EndOfRound())
        federated.run(10**6, 1.0)


class _Splitter:
    """The project's split, in the shape of fluke's DataSplitter."""

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        self.federation = federation
        device = torch.device(experiment.device)
        data = federation.data
        self.train = Samples(data.x_train, data.y_train, *data.statistics, device)
        self.test = Samples(data.x_test, data.y_test, *data.statistics, device)

    def assign(self, clients: int, batch_size: int) -> tuple[tuple[list[Any], list[Any]], Any]:
        from fluke.data import FastDataLoader

        def loader(samples: Samples, index: Tensor, batch_size: int, shuffle: bool) -> Any:
            x, y = samples.batch(index.to(samples.x.device))
            classes = self.federation.data.classes
            return FastDataLoader(x, y, num_labels=classes, batch_size=batch_size, shuffle=shuffle)

        def test_loader(index: Tensor) -> Any:
            return loader(self.test, index, EVALUATION_BATCH, False) if len(index) else None

        train = [loader(self.train, self.federation.train[k], batch_size, True) for k in range(clients)]
        test = [test_loader(self.federation.test[k]) for k in range(clients)]
        return (train, test), test_loader(torch.arange(len(self.federation.data.y_test)))


_declared: list[torch.library.Library] = []  # kept: a library's operators go with it


def _make_torchvision_importable() -> None:
    """fluke imports torchvision for nets and data that are not used here. Where only a build for another
    torch is to be had, its import stumbles over two operators that are missing: to declare them is enough."""
    try:
        import torchvision
    except RuntimeError:
        _forget([name for name in sys.modules if name.partition(".")[0] == "torchvision"])
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
        import torchvision  # noqa: F401


def _forget(modules: Sequence[str]) -> None:
    for name in modules:
        del sys.modules[name]
