"""A lane: clients trained in lockstep, their states stacked, one step moving them all.

Client i's tensors are row i of stacked ones, [width, ...]. Clients are in the order of their lengths, so
those that still train are always the first v rows: as clients finish, a step works on a shorter prefix.
On a GPU a step is captured once as a CUDA graph and replayed; the batch is gathered inside it, by a
counter that it increments itself, so the host has nothing to do but to ask for the next step.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgela.algorithms import Phase
from fedgela.data import Dataset
from fedgela.errors import UserError, first_line
from fedgela.models import Net, State
from fedgela.operations.batch import gather, gathers
from fedgela.operations.loss import record
from fedgela.randomness import seed_torch
from fedgela.training.groups import Group
from fedgela.training.interface import Job, Loss, Outcome, Plan, first_draw, losses_of
from fedgela.training.optimiser import Optimiser, clip_by_client
from fedgela.training.stacking import ClientConv2d

# (weights, x, y, client) -> losses, and the buffers that the net has put other tensors in the place of
Losses = Callable[[State, Tensor, Tensor, State], tuple[Tensor, State]]

WARM_UP_STEPS = 2  # before a capture: libraries choose their kernels and take their workspaces
MOST_GRAPHS = 32  # of a lane; clients of rare batch sizes beyond that go without


@dataclass(frozen=True)
class Recipe:
    """What all lanes of a device have in common. Its net is a template: a lane brings its own weights."""

    net: Net
    data: Dataset
    optimiser: Optimiser
    batch_size: int
    compiled: bool = False
    note: Callable[[str], None] = lambda text: None
    losses: dict[object, Losses] = field(default_factory=dict)  # compiled, by method, stacked or not
    labels: Tensor = field(init=False)  # on the CPU

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", self.data.y_train.cpu())

    def compile(self, objective: "Objective", function: Losses, stacked: bool) -> Losses:
        """One compiled function for all lanes: they differ in the tensors that they give it only, and,
        stacked, in the number of clients. What cannot be compiled runs as it is."""
        key = (_identity(objective.loss), stacked)
        if key not in self.losses:
            torch._dynamo.config.recompile_limit = 64  # one for each phase, and each number of clients
            compiled = torch.compile(function, fullgraph=True, dynamic=None if stacked else False)

            def with_a_way_out(*arguments: Any) -> tuple[Tensor, State]:
                if self.losses[key] is not with_a_way_out:
                    return function(*arguments)
                try:
                    return compiled(*arguments)
                except torch._dynamo.exc.TorchDynamoException as error:
                    self.losses[key] = function
                    self.note(f"this model cannot be compiled and runs as it is ({first_line(error)})")
                    return function(*arguments)

            self.losses[key] = with_a_way_out
        return self.losses[key]


class Objective(nn.Module):
    """A method's loss as a module, so that `functional_call` can put weights into the net beneath it. Its x
    are samples, or, if they are ready, the net's inputs."""

    def __init__(self, net: Net, loss: Loss, data: Dataset, ready: bool) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.data = data
        self.ready = ready

    def forward(self, x: Tensor, y: Tensor, client: State) -> Tensor:
        inputs = x if self.ready else self.data.training_inputs(x, client["draw"])
        return losses_of(self.loss, self.net, inputs, y, client)


class _ComputeCopies(torch.autograd.Function):
    """bf16 copies of fp32 weights, and their gradients back in fp32: one kernel each way for all of them."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        copies = [torch.empty_like(w, dtype=torch.bfloat16) for w in weights]
        torch._foreach_copy_(copies, list(weights))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        there = [g for g in gradients if g is not None]
        copies = [torch.empty_like(g, dtype=torch.float32) for g in there]
        torch._foreach_copy_(copies, there)
        back = iter(copies)
        return tuple(None if g is None else next(back) for g in gradients)


class Lane:
    def __init__(self, recipe: Recipe, width: int, device: torch.device) -> None:
        if recipe.data.kind != "tokens":
            _ = recipe.data.normalisation  # worked out before a step needs it
        self.recipe = recipe
        self.width = width
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.graphs = self.stream is not None  # until a net turns out not to be capturable
        self.pool: Any = None
        self.state = {name: _rows(value, width) for name, value in recipe.net.state_dict().items()}
        self.slots = {
            name: recipe.optimiser.slots(self.state[name]) for name, _ in recipe.net.named_parameters()
        }
        self.client: State = {}
        self.index = torch.zeros(width, 0, dtype=torch.int64, device=device)
        # the coming step's row of the index, and every client's number of draws: what a step counts up
        self.counters = torch.zeros(1 + width, dtype=torch.int64, device=device)
        self.at = self.counters[:1]
        self.lr = torch.zeros((), device=device)
        self.loss_sum = torch.zeros(width, recipe.data.classes, device=device)
        self.moves: dict[tuple[Any, ...], _Move] = {}
        self.group: Group | None = None

    # -- a group of clients ------------------------------------------------------------------------

    def begin(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Take clients on, the longest first, all with the same size of batch."""
        group = self.group = Group(plan, jobs, self.recipe.batch_size)
        with torch.cuda.stream(self.stream):
            if self.stream is not None:
                self.stream.wait_stream(torch.cuda.default_stream(self.device))
            self._fit(group)
            for phase in plan.phases:
                for v, _ in group.pieces(phase):
                    self._move(plan.loss, phase, v, group.batch)
            self._load(group)

    def steps(self) -> Iterator[None]:
        """Take the group's steps, one at each turn. On a GPU a step taken is a step asked for."""
        assert self.group is not None
        group = self.group
        for phase in group.plan.phases:
            self._forget()
            for v, count in group.pieces(phase):
                move = self._move(group.plan.loss, phase, v, group.batch)
                for _ in range(count):
                    move()
                    yield

    def finish(self, device: torch.device) -> list[Outcome]:
        """What the group's clients have learnt, on `device`; the lane is free then."""
        assert self.group is not None
        self._check_places()
        if self.stream is not None:
            torch.cuda.default_stream(self.device).wait_stream(self.stream)
        losses = self.loss_sum.to("cpu", copy=True)
        labels = self.recipe.labels
        outcomes = []
        for i, job in enumerate(self.group.jobs):
            model = {name: value[i].to(device, copy=True) for name, value in self.state.items()}
            count = torch.bincount(labels[self.group.seen(i)], minlength=self.recipe.data.classes).float()
            outcomes.append(Outcome(job.client, model, losses[i], count))
        self.group = None
        return outcomes

    def _check_places(self) -> None:
        """Steps work on rows of the lane's state. What a layer learns elsewhere never leaves the lane."""
        for move in self.moves.values():
            for name, weight in move.weights.items():
                if weight.data_ptr() != self.state[name].data_ptr():
                    raise UserError(f"the model moves its weights in memory ({name}): use engine = eager")

    def _fit(self, group: Group) -> None:
        """Make room for what this group brings. Captured steps hold addresses: new room, new captures."""
        one = _here(group.jobs[0].vectors | group.jobs[0].references, self.device)
        held = {name: (value.shape[1:], value.dtype) for name, value in self.client.items() if name != "draw"}
        if not self.client or held != {name: (value.shape, value.dtype) for name, value in one.items()}:
            self.client = {name: _rows(value, self.width) for name, value in one.items()}
            self.client["draw"] = self.counters[1:]
            self.drop_moves()
        if self.index.shape[1] < group.rows * group.batch:
            self.index = self.index.new_zeros(self.width, group.rows * group.batch)
            self.drop_moves()

    def drop_moves(self) -> None:
        """Forget the steps known so far, and the memory that their graphs share."""
        self.moves.clear()
        self.pool = torch.cuda.graph_pool_handle() if self.stream is not None else None

    def _load(self, group: Group) -> None:
        v = len(group.jobs)
        for i, job in enumerate(group.jobs):
            for name, value in self.state.items():
                value[i].copy_(job.start[name])
            for name, given in {**job.vectors, **job.references}.items():
                self.client[name][i].copy_(given)
        draws = torch.tensor([first_draw(group.plan, job.client) for job in group.jobs])
        self.client["draw"][:v].copy_(draws)
        self.index[:v, : group.rows * group.batch].copy_(group.index.flatten(1))
        self.at.zero_()
        self.loss_sum.zero_()
        self.lr.copy_(torch.tensor(group.plan.lr))  # beyond float32 it is infinite, and the loss soon is too
        if draws_by_itself(self.recipe.net):
            seed_torch(first_draw(group.plan, group.jobs[0].client))

    def _forget(self) -> None:
        """Momentum starts at zero in every phase."""
        for slots in self.slots.values():
            for slot in slots.values():
                slot.zero_()

    # -- steps -------------------------------------------------------------------------------------

    def _move(self, loss: Loss, phase: Phase, v: int, batch: int) -> "_Move":
        key = (_identity(loss), phase.trains, v, batch)
        if key not in self.moves:
            move = _Move(self, loss, phase, v, batch)
            if self.graphs and len(self.moves) < MOST_GRAPHS:
                self._capture(move)
            self.moves[key] = move
        return self.moves[key]

    def _capture(self, move: "_Move") -> None:
        try:
            move.capture()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.graphs = False
            self.recipe.note(
                f"this model cannot be captured as a CUDA graph: its steps are launched one by one "
                f"({first_line(error)})"
            )


class _Move:
    """One step of a lane's first v clients."""

    def __init__(self, lane: Lane, loss: Loss, phase: Phase, v: int, batch: int) -> None:
        recipe = lane.recipe
        self.lane, self.v, self.batch = lane, v, batch
        self.graph: torch.cuda.CUDAGraph | None = None
        # a lane for one client at a time goes without vmap: any net can do that
        self.stacked = lane.width > 1
        rows: int | slice = slice(0, v) if self.stacked else 0
        names = [name for name, _ in recipe.net.named_parameters()]
        trained = {name for name in names if phase.selects(name) and name not in recipe.net.frozen}
        self.weights: State = {}
        for name, value in lane.state.items():
            self.weights[name] = value[rows].detach().requires_grad_(name in trained)
        self.trained = [self.weights[name] for name in lane.slots if name in trained]
        slots = [
            {key: slot if slot.dim() == 0 else slot[rows] for key, slot in lane.slots[name].items()}
            for name in lane.slots
            if name in trained
        ]
        on_gpu = lane.stream is not None
        self.optimiser = recipe.optimiser.over(self.trained, lane.lr if on_gpu else 0.0, slots)
        self.copied = [name for name in self.weights if name in recipe.net.bf16_entries()]
        self.client = {name: value[rows] for name, value in lane.client.items()}
        steps = lane.index.shape[1] // batch
        self.index = lane.index[:v, : steps * batch].view(v, steps, batch)
        self.counters = lane.counters[: 1 + v]
        self.slope = torch.full((v, batch), 1 / max(batch, 1), device=lane.device)
        self.ready = self.stacked and gathers(recipe.data.x_train) and not recipe.data.augment
        self.losses = self._losses(Objective(recipe.net, loss, recipe.data, self.ready))

    def _losses(self, objective: Objective) -> Losses:
        buffers = [name for name in self.weights if name not in self.lane.slots]

        def one(weights: State, x: Tensor, y: Tensor, client: State) -> tuple[Tensor, State]:
            named = {f"net.{name}": value for name, value in weights.items()}
            loss: Tensor = functional_call(objective, named, (x, y, client))
            after = {name: named[f"net.{name}"] for name in buffers}
            return loss, {name: value.detach() for name, value in after.items() if value is not weights[name]}

        losses: Losses = vmap(one, randomness="different") if self.stacked else one
        recipe = self.lane.recipe
        if recipe.compiled and self.batch == recipe.batch_size:
            return recipe.compile(objective, losses, self.stacked)
        return losses

    def __call__(self) -> None:
        if self.graph is None:
            self._take()
        else:
            self.graph.replay()

    def _take(self) -> None:
        lane = self.lane
        self.optimiser.zero_grad(set_to_none=True)  # of a step that failed half-way, as in a failed capture
        x, y = self._batch()
        weights, client = self.weights, self.client
        if self.copied:
            client = client | {f"master/{name}": weights[name] for name in self.copied}
            copies = _ComputeCopies.apply(*[weights[name] for name in self.copied])  # type: ignore[no-untyped-call]
            weights = weights | dict(zip(self.copied, copies, strict=True))
        if self.stacked:
            losses, assigned = self.losses(weights, x, y, client)  # [v, B]
        else:
            losses, assigned = self.losses(weights, x[0], y[0], client)
            losses = losses[None]
        # of the sum over clients of their mean losses: they do not touch one another, so that this holds
        # every client's own gradient
        losses.backward(self.slope)  # type: ignore[no-untyped-call]
        for name, value in assigned.items():  # not before: the backward pass may read what was there
            self.weights[name].copy_(value)
        self._clip()
        if lane.stream is None:
            for group in self.optimiser.param_groups:
                group["lr"] = lane.group.plan.lr if lane.group is not None else 0.0
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        record(losses.detach(), y, lane.loss_sum, self.counters)

    def _batch(self) -> tuple[Tensor, Tensor]:
        lane, data = self.lane, self.lane.recipe.data
        if self.ready:
            dtype = torch.bfloat16 if _begins_in_bf16(lane.recipe.net) else torch.float32
            return gather(data.x_train, data.y_train, self.index, lane.at, data.normalisation, dtype)
        rows = self.index.index_select(1, lane.at).squeeze(1)  # [v, B]
        return data.x_train[rows], data.y_train[rows]

    def _clip(self) -> None:
        longest = self.lane.recipe.optimiser.clip_norm
        if longest > 0:
            if not self.stacked:
                nn.utils.clip_grad_norm_(self.trained, longest)
            else:
                clip_by_client([p.grad for p in self.trained if p.grad is not None], longest)

    def capture(self) -> None:
        """Take the step into a CUDA graph, on the lane's own stream: streams that shared one would share
        a workspace too, and corrupt each other. What the lane holds is spoilt; `begin` loads after it."""
        lane = self.lane
        lane.at.zero_()
        drawn = torch.get_rng_state()
        for _ in range(WARM_UP_STEPS):
            self._take()
            lane.at.zero_()
        if not torch.equal(torch.get_rng_state(), drawn):  # which every replay would have the same of
            raise RuntimeError("it draws numbers on the CPU")
        torch.cuda.synchronize(lane.device)
        graph = torch.cuda.CUDAGraph()
        # not torch.cuda.graph: it collects garbage and empties the cache at every one
        with _no_garbage_collected():
            graph.capture_begin(pool=lane.pool)
            try:
                self._take()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what went wrong is said already
                    graph.capture_end()
                raise
            graph.capture_end()
        self.graph = graph


def _rows(value: Tensor, width: int) -> Tensor:
    """Room for `width` of these, each filled with it, and each lying in memory as it does."""
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    back = [1 + order.index(i) for i in range(value.dim())]
    dense = value.detach().permute(order)
    return dense.expand(width, *dense.shape).clone().permute(0, *back)


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """The graph of an earlier run, thrown away during a capture, would end it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _here(state: State, device: torch.device) -> State:
    return {name: value.to(device) for name, value in state.items()}


def _identity(loss: Loss) -> object:
    """The same for the same method with the same settings, however it came here."""
    return (loss.__func__, loss.__self__) if hasattr(loss, "__self__") else loss  # type: ignore[attr-defined]


def _begins_in_bf16(net: Net) -> bool:
    """Whether the first layer would cast its inputs to bf16 anyway."""
    first = next(part for part in net.backbone.modules() if not any(part.children()))
    return net.in_bf16 and isinstance(first, ClientConv2d)


def draws_by_itself(net: Net) -> bool:
    layers = (part for part in net.modules() if isinstance(part, nn.modules.dropout._DropoutNd))
    return net.backbone.draws or any(layer.p > 0 for layer in layers)
