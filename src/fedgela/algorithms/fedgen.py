"""FedGen: the server learns a generator of features by class, which regularises the clients.

Zhu, Hong, Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.

Server, `generator_steps` a round, G(eps, y) a feature for noise eps ~ U(0, 1) and label y:

    min over G of   sum_k mean_i w_ki CE(h_k(G(eps_i, y_i)), y_i)  +  eta * diversity,
    w_ki = n_{k,y_i} / sum_j n_{j,y_i},    diversity = exp(-mean_ij |eps_i - eps_j|^2 |G_i - G_j|_1)

with h_k the head that client k has just sent, and both distances means over coordinates. Client:

    CE(f(x), y) + (B_g / B) alpha CE(h(G(eps, y~)), y~) + beta KL(softmax h(G(eps, y)) || softmax f(x))

with y~ uniform over all classes and no gradient through the KL's target. As in the authors' code both terms
start in the second round (the generator is untrained before), alpha and beta shrink by 0.98 a round down to
1e-4, and G is Linear-BatchNorm-ReLU-Linear, trained by Adam. Their alpha = beta = 10 are for SGD without
momentum, and mostly break with it; 1 is what validation data chose (docs/methods.md). The server needs label
counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.algorithms.fedavg import FedAvg, Grid, Moment, ServerState, Update, cross_entropy
from fedgela.models import Net, State
from fedgela.randomness import generator, seed_of, seed_torch, uniform

FLOOR = 1e-4  # below which alpha and beta do not shrink
MOST = 65536  # generated samples, noise or hidden units: far more than is of use, and still fits into memory


@dataclass(frozen=True)
class FedGen(FedAvg):
    name: ClassVar[str] = "fedgen"
    title: ClassVar[str] = "FedGen"
    grid: ClassVar[Grid] = {"alpha,beta": ((1.0, 1.0), (10.0, 10.0), (0.1, 0.1))}

    alpha: Annotated[float, Ge(0)] = 1.0
    beta: Annotated[float, Ge(0)] = 1.0
    decay: Annotated[float, Gt(0), Le(1)] = 0.98
    eta: Annotated[float, Ge(0)] = 1.0
    generated: Annotated[int, Gt(1), Le(MOST)] = 32  # B_g, and the generator's own batch
    noise: Annotated[int, Gt(0), Le(MOST)] = 32
    hidden: Annotated[int, Gt(0), Le(MOST)] = 256
    generator_steps: Annotated[int, Ge(0), Le(10**6)] = 50
    generator_lr: Annotated[float, Gt(0)] = 3e-4
    generator_weight_decay: Annotated[float, Ge(0)] = 1e-2

    def shares(self) -> str | None:
        return "each client's label counts, by which the generator's teachers are weighted"

    def sends(self, counts: Tensor, features: Callable[[], tuple[Tensor, Tensor]]) -> State:
        return {"counts": counts}

    def initial_extra(self, d: int, C: int, seed: int) -> State:
        with torch.random.fork_rng(devices=[]):
            seed_torch(seed_of(seed, "init", "generator"))
            G = nn.Sequential(
                nn.Linear(self.noise + C, self.hidden),
                nn.BatchNorm1d(self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, d),
            )
        return {
            **{f"G/layers.{name}": value.detach() for name, value in G.state_dict().items()},
            "strength": torch.zeros(2),  # alpha and beta of the coming round: none in the first
        }

    # -- the client --------------------------------------------------------------------------------

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        logits = net(x)
        C, B = logits.shape[1], len(y)
        alpha, beta = client["strength"].unbind()
        draw = client["draw"]
        y_any = (uniform(draw, 0, (self.generated,)) * C).long()
        eps_any = uniform(draw, 1, (self.generated, self.noise))
        eps = uniform(draw, 2, (B, self.noise))
        # one pass for both batches, in evaluation mode, without gradients: clients do not train G
        with torch.no_grad():
            z = generate(client, torch.cat([eps_any, eps]), torch.cat([y_any, y]), C)
        z_any, z_y = z[: self.generated], z[self.generated :]
        ce_generated = cross_entropy(net.head(z_any), y_any).mean()
        target = net.head(z_y).detach().softmax(dim=1)
        # KL written out: vmap has no rule for F.kl_div
        kl = (torch.xlogy(target, target) - target * logits.log_softmax(dim=1)).sum(dim=1)  # [B]
        ce = cross_entropy(logits, y)
        loss: Tensor = ce + self.generated / B * alpha * ce_generated + beta * kl
        return loss

    # -- the server --------------------------------------------------------------------------------

    def aggregate(self, server: ServerState, updates: Sequence[Update], moment: Moment) -> ServerState:
        after = super().aggregate(server, updates, moment)
        strength = torch.tensor([self.alpha, self.beta]) * self.decay**moment.round
        wanted = torch.tensor([self.alpha, self.beta]) > 0
        strength = torch.where(wanted, strength.clamp(min=FLOOR), 0.0)
        G, adam = self._train_generator(server, updates, moment)
        extra = {**G, "strength": strength.to(server.extra["strength"])}
        return replace(after, extra=extra, private={**server.private, **adam})

    def _train_generator(
        self, server: ServerState, updates: Sequence[Update], moment: Moment
    ) -> tuple[State, State]:
        """The generator's next state, and its optimiser's."""
        heads = [(update.model["head.weight"], update.model["head.bias"]) for update in updates]
        C, device = len(heads[0][0]), heads[0][0].device
        counts = torch.stack([update.extra["counts"] for update in updates]).float().to(device)
        share = counts / counts.sum(dim=0).clamp(min=1)  # [K, C]: w_{k,y}
        G = {k: v.to(device, copy=True) for k, v in server.extra.items() if k.startswith("G/")}
        weights = [
            G[f"G/layers.{i}.{name}"].requires_grad_() for i in (0, 1, 3) for name in ("weight", "bias")
        ]
        lr = self.generator_lr * self.decay ** (moment.round - 1)
        adam = torch.optim.Adam(weights, lr, weight_decay=self.generator_weight_decay)
        _restore(adam, server.private)
        draws = generator(moment.seed, "generator", moment.round)
        for _ in range(self.generator_steps):
            y = torch.randint(C, (self.generated,), generator=draws).to(device)
            eps = torch.rand(self.generated, self.noise, generator=draws).to(device)
            z = generate(G, eps, y, C, training=True)
            teachers_ce = z.new_zeros(())
            for k, (weight, bias) in enumerate(heads):
                ce = cross_entropy(F.linear(z, weight, bias), y)
                teachers_ce = teachers_ce + (share[k, y] * ce).mean()
            adam.zero_grad()
            (teachers_ce + self.eta * diversity(eps, z)).backward()  # type: ignore[no-untyped-call]
            adam.step()
        G["G/layers.1.num_batches_tracked"] += self.generator_steps
        return {name: value.detach() for name, value in G.items()}, _saved(adam)


def generate(state: State, eps: Tensor, y: Tensor, C: int, training: bool = False) -> Tensor:
    """G: noise [B, noise] and labels [B] to features [B, d], by the tensors `G/...` of a state. In training
    the batch's own statistics count, and the running ones are moved."""

    def part(name: str) -> Tensor:
        return state[f"G/layers.{name}"]

    h = F.linear(torch.cat([eps, F.one_hot(y, C).to(eps)], dim=1), part("0.weight"), part("0.bias"))
    statistics = part("1.running_mean"), part("1.running_var")
    h = F.batch_norm(h, *statistics, part("1.weight"), part("1.bias"), training).relu()
    return F.linear(h, part("3.weight"), part("3.bias"))


def diversity(eps: Tensor, z: Tensor) -> Tensor:
    """exp(-mean_ij |eps_i - eps_j|^2 |z_i - z_j|_1), distances as means: small where noise is heard."""
    noise_distance = (eps[:, None] - eps[None]).square().mean(dim=2)
    feature_distance = (z[:, None] - z[None]).abs().mean(dim=2)
    return (-(noise_distance * feature_distance).mean()).exp()


def _saved(adam: torch.optim.Optimizer) -> State:
    """Adam's moments as named tensors, so that they last over rounds and checkpoints."""
    return {
        f"adam/{i}/{name}": value.detach().clone()
        for i, moments in adam.state_dict()["state"].items()
        for name, value in moments.items()
    }


def _restore(adam: torch.optim.Optimizer, private: State) -> None:
    table = adam.state_dict()
    for key, value in private.items():
        if key.startswith("adam/"):
            _, i, name = key.split("/")
            table["state"].setdefault(int(i), {})[name] = value.clone()
    adam.load_state_dict(table)
