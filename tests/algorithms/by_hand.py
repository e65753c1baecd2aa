"""A slow reference of a method's local step, in float64: its loss written out, its slopes by differences."""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedgela.algorithms import FedAvg, Phase
from fedgela.models import Backbone, Net, State
from fedgela.training import Optimiser

Array = np.ndarray
Weights = dict[str, Array]
# (weights, the weights as they were) -> loss of every sample; what a method stops the gradient of is
# computed from the second
Reference = Callable[[Weights, Weights], Array]

SMALL_C, SMALL_D = 3, 4


class SmallBackbone(Backbone):
    """One smooth layer, so that slopes can be told by differences."""

    def __init__(self, norm: bool) -> None:
        super().__init__(width=5)
        self.flat = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.flat(x.flatten(1))))


def small_net(algorithm: FedAvg, seed: int = 0, norm: bool = False) -> Net:
    """A net in float64 with few enough weights to try each of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = algorithm.head(SMALL_D, SMALL_C, seed)
        return Net(SmallBackbone(norm), nn.Linear(5, SMALL_D), head).double()


def small_batch(labels: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), 1, 2, 3, generator=generator, dtype=torch.float64)
    return x, torch.tensor(labels)


def doubled(state: State) -> State:
    return {name: v.double() if v.is_floating_point() else v for name, v in state.items()}


def snapshot(net: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def linear(w: Weights, layer: str, x: Array) -> Array:
    return x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]


def features_by_hand(w: Weights, x: Tensor) -> Array:
    """z, [B, d], of a small net without norm."""
    flat = x.double().flatten(1).numpy()
    return linear(w, "projection", np.tanh(linear(w, "backbone.flat", flat)))


def logits_by_hand(w: Weights, x: Tensor) -> Array:
    return linear(w, "head", features_by_hand(w, x))


def softmax_by_hand(logits: Array) -> Array:
    """Of one sample."""
    powers = [math.exp(v - max(logits)) for v in logits]
    return np.array([power / sum(powers) for power in powers])


def ce_by_hand(logits: Array, y: Tensor, classes: Sequence[int] | None = None) -> Array:
    """-log softmax[y] of every sample, [B], the sum over these classes (all of them)."""
    losses = []
    for row, label in zip(logits, y.tolist(), strict=True):
        summed = [row[c] for c in (range(len(row)) if classes is None else classes)]
        top = max(summed)
        losses.append(top + math.log(sum(math.exp(v - top) for v in summed)) - row[label])
    return np.array(losses)


def weights_of(net: nn.Module) -> Weights:
    return {name: p.detach().double().numpy().copy() for name, p in net.named_parameters()}


def slope(value: Callable[[], float], weight: Array, step: float = 1e-5) -> Array:
    """The gradient of `value` by central differences, one entry of `weight` after the other."""
    result = np.empty_like(weight)
    for i in np.ndindex(weight.shape):
        kept = weight[i]
        weight[i] = kept + step
        above = value()
        weight[i] = kept - step
        result[i] = (above - value()) / (2 * step)
        weight[i] = kept
    return result


def assert_follows(
    algorithm: FedAvg,
    net: Net,
    batch: tuple[Tensor, Tensor],
    client: State,
    reference: Reference,
    phase: Phase | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-7,
) -> None:
    """Every sample's loss is the reference's, and a local step goes down the slope of its mean, with
    weight decay on what the phase trains and without a trace on what it does not."""
    LR, DECAY = 0.1, 0.01
    phase = phase or Phase(1)
    net.train()
    fixed, w = weights_of(net), weights_of(net)
    trained = []
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(phase.selects(name))
        if parameter.requires_grad:
            trained.append(parameter)
    loss = algorithm.loss(net, *batch, client)
    np.testing.assert_allclose(loss.detach().numpy(), reference(w, fixed), rtol=rtol)
    loss.mean().backward()
    Optimiser("sgd", 0.9, DECAY).over(trained, LR).step()
    for name, after in weights_of(net).items():
        expected = fixed[name].copy()
        if phase.selects(name):
            expected -= LR * (slope(lambda: reference(w, fixed).mean(), w[name]) + DECAY * fixed[name])
        np.testing.assert_allclose(after, expected, rtol=0, atol=atol, err_msg=name)


def gradients(algorithm: FedAvg, net: Net, batch: tuple[Tensor, Tensor], client: State) -> State:
    """Of the mean loss, zero for what it does not touch; the net stays as it is."""
    net = copy.deepcopy(net)
    algorithm.loss(net, *batch, client).mean().backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}
