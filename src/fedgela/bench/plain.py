"""The yardstick: federated averaging as the field writes it, in ordinary PyTorch.

One client after another, one batch after another, fp32, all tensors on the device, no DataLoader. There is
nothing here that makes it faster than that, and nothing that makes it slower.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.bench.contender import Contender
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.models import State
from fedgela.nets import initial_net

EVALUATION_BATCH = 1000


class Samples:
    """Images and labels on the device, normalised a batch at a time."""

    def __init__(self, x: Tensor, y: Tensor, mean: Tensor, std: Tensor, device: torch.device) -> None:
        self.x = x.contiguous().to(device)  # uint8 [n, channels, height, width]
        self.y = y.to(device)
        self.mean = (255 * mean).view(-1, 1, 1).to(device)  # of pixels 0..255
        self.std = (255 * std).view(-1, 1, 1).to(device)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return (self.x[index].float() - self.mean) / self.std, self.y[index]


class Plain(Contender):
    includes = "training, average, global model on the test set, local models on their clients' test sets"

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        super().__init__(experiment, federation)
        data = federation.data
        self.train = Samples(data.x_train, data.y_train, *data.statistics, self.device)
        self.test = Samples(data.x_test, data.y_test, *data.statistics, self.device)
        self.clients = range(federation.clients)
        self.train_of = [federation.train[k].to(self.device) for k in self.clients]
        self.test_of = [federation.test[k].to(self.device) for k in self.clients]
        self.union = torch.arange(len(data.y_test), device=self.device)
        self.net = initial_net(experiment, federation.data).to(experiment.device)
        self.model = state_of(self.net)
        self.global_accuracy = 0.0
        self.local_accuracies: list[float] = []

    def warm_up(self) -> None:
        """One epoch: there is nothing that a longer round would make ready."""
        whole = self.experiment
        self.experiment = whole.with_(epochs=1)
        self.round()
        self.experiment = whole

    def round(self) -> None:
        locals_: list[State] = []
        self.local_accuracies = []
        for client in self.clients:
            self.net.load_state_dict(self.model)
            self.train_client(client)
            locals_.append(state_of(self.net))
            if len(self.test_of[client]):
                self.local_accuracies.append(self.accuracy(self.test_of[client]))
        self.model |= average(locals_, [len(samples) for samples in self.train_of])
        self.net.load_state_dict(self.model)
        self.global_accuracy = self.accuracy(self.union)

    def train_client(self, client: int) -> None:
        e = self.experiment
        optimiser = torch.optim.SGD(self.net.parameters(), e.lr, e.momentum, weight_decay=e.weight_decay)
        self.net.train()
        for epoch in range(e.epochs):
            for index in self.batches(client, epoch):
                x, y = self.train.batch(index)
                optimiser.zero_grad()
                loss = F.cross_entropy(self.net(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()

    def batches(self, client: int, epoch: int) -> Iterator[Tensor]:
        """Shuffled; a ragged last batch is dropped, unless it is the only one."""
        samples = self.train_of[client]
        shuffled = samples[torch.randperm(len(samples), device=self.device)]
        B = self.experiment.batch_size
        return (batch for batch in torch.split(shuffled, B) if len(batch) == min(B, len(samples)))

    @torch.no_grad()
    def accuracy(self, samples: Tensor) -> float:
        """In percent, of the net as it is."""
        self.net.eval()
        right = torch.zeros((), device=self.device)
        for index in torch.split(samples, EVALUATION_BATCH):
            x, y = self.test.batch(index)
            right += (self.net(x).argmax(dim=1) == y).sum()
        return 100 * right.item() / len(samples)


def state_of(net: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def average(models: list[State], weights: list[int]) -> State:
    """The weighted mean of all float entries, running statistics included."""
    total = sum(weights)
    return {
        name: torch.stack([model[name] * (n / total) for model, n in zip(models, weights, strict=True)]).sum(
            0
        )
        for name, first in models[0].items()
        if first.is_floating_point()
    }
