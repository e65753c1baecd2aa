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
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgela.algorithms import Phase
from fedgela.data import Dataset
from fedgela.errors import UserError, first_line
from fedgela.models import Net, State, on_device, plain_copy
from fedgela.operations.batch import gather, gathers
from fedgela.operations.loss import record
from fedgela.randomness import seed_torch
from fedgela.training.groups import Group
from fedgela.training.interface import Job, Loss, Outcome, Plan, first_draw, losses_of
from fedgela.training.optimiser import Optimiser, clip_by_client
from fedgela.training.stacking import ClientConv2d

# (weights, x, y, client) -> losses, and the new values of buffers that the net has assigned anew
Losses = Callable[[State, Tensor, Tensor, State], tuple[Tensor, State]]

WARM_UP_STEPS = 2  # before a capture: libraries choose their kernels and take their workspaces
MOST_GRAPHS = 32  # of a lane; further kinds of steps, such as those of rare batch sizes, run without a graph


@dataclass(frozen=True)
class Recipe:
    """What all lanes of a device have in common. The net is a template, run with each lane's own weights."""

    net: Net
    data: Dataset
    optimiser: Optimiser
    batch_size: int
    compiled: bool = False
    note: Callable[[str], None] = lambda text: None
    losses: dict[object, Losses] = field(default_factory=dict)  # compiled, by method, stacked or not

    @cached_property
    def labels(self) -> Tensor:
        """Of the training samples, on the CPU."""
        return self.data.y_train.cpu()

    def compile(self, objective: "Objective", function: Losses, stacked: bool) -> Losses:
        """The function, compiled once for all lanes, which differ only in the tensors that they call it with
        and, if stacked, in the number of clients. A function that cannot be compiled runs as it is."""
        key = (_identity(objective.loss), stacked)
        if key not in self.losses:
            torch._dynamo.config.recompile_limit = 64  # one for each phase, and each number of clients
            compiled = torch.compile(function, fullgraph=True, dynamic=None if stacked else False)

            def compiled_if_possible(*arguments: Any) -> tuple[Tensor, State]:
                if self.losses[key] is not compiled_if_possible:
                    return function(*arguments)
                try:
                    return compiled(*arguments)
                except torch._dynamo.exc.TorchDynamoException as error:
                    self.losses[key] = function
                    self.note(f"this model cannot be compiled and runs as it is ({first_line(error)})")
                    return function(*arguments)

            self.losses[key] = compiled_if_possible
        return self.losses[key]


class Objective(nn.Module):
    """A method's loss as a module, so that `functional_call` can put weights into the net inside it.

    Its x are raw samples, which it augments and normalises, or, if `ready`, the net's inputs already.
    """

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
        recipe.data.inputs(recipe.data.x_train[:1])  # computes statistics now, not in the first captured step
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
        # what every step increments: the coming step's row of the index, and each client's draw number
        self.counters = torch.zeros(1 + width, dtype=torch.int64, device=device)
        self.at = self.counters[:1]
        self.lr = torch.zeros((), device=device)
        self.loss_sum = torch.zeros(width, recipe.data.classes, device=device)
        self.known_steps: dict[tuple[Any, ...], _Step] = {}
        self.group: Group | None = None

    # -- a group of clients ------------------------------------------------------------------------

    def begin(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Load a group of clients that share one batch size, and prepare all steps that they will need."""
        group = self.group = Group(plan, jobs, self.recipe.batch_size)
        with torch.cuda.stream(self.stream):
            if self.stream is not None:
                self.stream.wait_stream(torch.cuda.default_stream(self.device))
            self._fit(group)
            for phase in plan.phases:
                for v, _ in group.pieces(phase):
                    self._step(plan.loss, phase, v, group.batch)
            self._load(group)

    def steps(self) -> Iterator[None]:
        """Take the group's steps, one for each item. On a GPU this only queues the step."""
        assert self.group is not None
        group = self.group
        for phase in group.plan.phases:
            self._reset_momentum()
            for v, count in group.pieces(phase):
                step = self._step(group.plan.loss, phase, v, group.batch)
                for _ in range(count):
                    step()
                    yield

    def finish(self, device: torch.device) -> list[Outcome]:
        """The trained models of the group's clients, on `device`. The lane can take another group then."""
        assert self.group is not None
        self._check_places()
        if self.stream is not None:
            torch.cuda.default_stream(self.device).wait_stream(self.stream)
        losses = self.loss_sum.to("cpu", copy=True)
        labels = self.recipe.labels
        outcomes = []
        for i, job in enumerate(self.group.jobs):
            model = {name: plain_copy(value[i], device) for name, value in self.state.items()}
            count = torch.bincount(labels[self.group.seen(i)], minlength=self.recipe.data.classes).float()
            outcomes.append(Outcome(job.client, model, losses[i], count))
        self.group = None
        return outcomes

    def _check_places(self) -> None:
        """A UserError where a layer has moved its weights to other memory: steps update rows of the lane's
        state in place, and what is learnt anywhere else would be lost."""
        for step in self.known_steps.values():
            for name, weight in step.weights.items():
                if weight.data_ptr() != self.state[name].data_ptr():
                    raise UserError(f"the model moves its weights in memory ({name}): use engine = eager")

    def _fit(self, group: Group) -> None:
        """Make the lane's buffers fit this group. Captured steps hold the buffers' addresses, so new buffers
        mean new captures."""
        one = on_device(group.jobs[0].vectors | group.jobs[0].references, self.device)
        held = {name: (value.shape[1:], value.dtype) for name, value in self.client.items() if name != "draw"}
        if not self.client or held != {name: (value.shape, value.dtype) for name, value in one.items()}:
            self.client = {name: _rows(value, self.width) for name, value in one.items()}
            self.client["draw"] = self.counters[1:]
            self.forget_steps()
        if self.index.shape[1] < group.rows * group.batch:
            self.index = self.index.new_zeros(self.width, group.rows * group.batch)
            self.forget_steps()

    def forget_steps(self) -> None:
        """Drop all prepared steps, and the memory pool that their graphs share."""
        self.known_steps.clear()
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
        self.lr.copy_(torch.tensor(group.plan.lr))  # a rate too large for float32 becomes infinite
        if draws_by_itself(self.recipe.net):
            seed_torch(first_draw(group.plan, group.jobs[0].client))

    def _reset_momentum(self) -> None:
        """Momentum starts at zero in every phase."""
        for slots in self.slots.values():
            for slot in slots.values():
                slot.zero_()

    # -- steps -------------------------------------------------------------------------------------

    def _step(self, loss: Loss, phase: Phase, v: int, batch: int) -> "_Step":
        key = (_identity(loss), phase.trains, v, batch)
        if key not in self.known_steps:
            step = _Step(self, loss, phase, v, batch)
            if self.graphs and len(self.known_steps) < MOST_GRAPHS:
                self._capture(step)
            self.known_steps[key] = step
        return self.known_steps[key]

    def _capture(self, step: "_Step") -> None:
        try:
            step.capture()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.graphs = False
            self.recipe.note(
                f"this model cannot be captured as a CUDA graph: its steps are launched one by one "
                f"({first_line(error)})"
            )


class _Step:
    """One step of a lane's first v clients."""

    def __init__(self, lane: Lane, loss: Loss, phase: Phase, v: int, batch: int) -> None:
        recipe = lane.recipe
        self.lane, self.v, self.batch = lane, v, batch
        self.graph: torch.cuda.CUDAGraph | None = None
        # a lane of one client does without vmap, which not every net can take
        self.stacked = lane.width > 1
        rows: int | slice = slice(0, v) if self.stacked else 0
        # the names of slots are those of the parameters
        trained = [name for name in lane.slots if phase.selects(name) and name not in recipe.net.frozen]
        self.weights: State = {}
        for name, value in lane.state.items():
            self.weights[name] = value[rows].detach().requires_grad_(name in trained)
        self.trained = [self.weights[name] for name in trained]
        slots = [
            {key: slot if slot.dim() == 0 else slot[rows] for key, slot in lane.slots[name].items()}
            for name in trained
        ]
        on_gpu = lane.stream is not None
        self.optimiser = recipe.optimiser.over(self.trained, lane.lr if on_gpu else 0.0, slots)
        in_bf16 = recipe.net.bf16_entries()
        self.copied = [name for name in self.weights if name in in_bf16]
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
        self.optimiser.zero_grad(set_to_none=True)  # a step that failed half-way has left gradients behind
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
        # the gradient of the sum over clients of their mean losses; since clients share no weights, it
        # consists of each client's own gradient
        losses.backward(self.slope)  # type: ignore[no-untyped-call]
        for name, value in assigned.items():  # only now: the backward pass may read the old values
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
        """Record the step as a CUDA graph. This overwrites the lane's state: `begin` loads its clients later.

        Every lane captures on its own stream: graphs captured on a common one would share a workspace, and
        corrupt each other's results when they run at the same time.
        """
        lane = self.lane
        lane.at.zero_()
        drawn = torch.get_rng_state()
        for _ in range(WARM_UP_STEPS):
            self._take()
            lane.at.zero_()
        if not torch.equal(torch.get_rng_state(), drawn):  # every replay would repeat the same draws
            raise RuntimeError("it draws numbers on the CPU")
        torch.cuda.synchronize(lane.device)
        graph = torch.cuda.CUDAGraph()
        # not by torch.cuda.graph, which collects garbage and empties the cache at every capture
        with _no_garbage_collected():
            graph.capture_begin(pool=lane.pool)
            try:
                self._take()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the error that broke the capture is raised below
                    graph.capture_end()
                raise
            graph.capture_end()
        self.graph = graph


def _rows(value: Tensor, width: int) -> Tensor:
    """`width` copies of a tensor, stacked; each copy has the memory layout of the original."""
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    back = [1 + order.index(i) for i in range(value.dim())]
    dense = value.detach().permute(order)
    return dense.expand(width, *dense.shape).clone().permute(0, *back)


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Collecting an earlier run's CUDA graph in the middle of a capture would break the capture off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _identity(loss: Loss) -> object:
    """A key that is the same for the same method with the same settings: bound methods are made anew at
    every access, and come as copies from other processes."""
    return (loss.__func__, loss.__self__) if hasattr(loss, "__self__") else loss  # type: ignore[attr-defined]


def _begins_in_bf16(net: Net) -> bool:
    """Whether the first layer would cast its input to bf16 anyway, so that batches may be made in bf16."""
    first = next(part for part in net.backbone.modules() if not any(part.children()))
    return net.in_bf16 and isinstance(first, ClientConv2d)


def draws_by_itself(net: Net) -> bool:
    """Whether the net draws random numbers from torch's global generator while it trains, as dropout does."""
    layers = (part for part in net.modules() if isinstance(part, nn.modules.dropout._DropoutNd))
    return net.backbone.draws or any(layer.p > 0 for layer in layers)
