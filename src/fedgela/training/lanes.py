"""The fast engine: clients are trained side by side in lanes, each lane on a stream of its own."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgela.data import Dataset
from fedgela.errors import UserError, first_line
from fedgela.imports import is_ours
from fedgela.models import Net, State, on_device
from fedgela.training.groups import groups_of
from fedgela.training.interface import Job, Outcome, Plan, Predict, Question
from fedgela.training.lane import Lane, Recipe, draws_by_itself
from fedgela.training.optimiser import Optimiser
from fedgela.training.recurrent import is_recurrent, keep_weights_in_place
from fedgela.training.stacking import make_stackable

STEPS_AHEAD = 16  # queued on a lane's stream at a time
MEMORY_LEFT = 1.2  # the free memory must be this many times what a further lane is expected to take


class Answering(nn.Module):
    """A prediction as a module, so that `functional_call` can put weights into the net inside it."""

    def __init__(self, net: Net, predict: Predict) -> None:
        super().__init__()
        self.net = net
        self.predict = predict

    def forward(self, x: Tensor, client: State) -> Tensor:
        return self.predict(self.net, x, client)


class LaneEngine:
    """Up to `lanes` lanes of `width` clients each, spread over the devices. Results are on the first one."""

    EVALUATION_BATCH = 1000  # on a CPU
    EVALUATION_BATCH_GPU = 5000
    workers_memory = 0  # there are none

    def __init__(
        self,
        net: Net,
        data: Dataset,
        devices: Sequence[torch.device],
        optimiser: Optimiser,
        batch_size: int,
        *,
        lanes: int,
        width: int,
        compiled: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.devices = devices
        self.device = devices[0]
        self.batch_size = batch_size
        self.most_lanes = lanes
        self.width = width
        self.note = note
        stacked = width > 1
        self.recipes = [
            Recipe(_on(net, to, stacked), data.to(to, stacked), optimiser, batch_size, compiled, self._note)
            for to in devices
        ]
        self.lanes: list[Lane] = []
        on_gpu = self.device.type == "cuda"
        self.evaluation_batch = self.EVALUATION_BATCH_GPU if on_gpu else self.EVALUATION_BATCH

    def _note(self, text: str) -> None:
        """For the recipes: `note` is looked up at every call, since a worker process replaces it."""
        self.note(text)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled, for a worker process, without `note`: the view that it belongs to stays here."""
        return self.__dict__ | {"note": _unheard}

    # -- training ----------------------------------------------------------------------------------

    def train(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Outcome]:
        gpus = [device for device in self.devices if device.type == "cuda"]
        if draws_by_itself(self.recipes[0].net):
            # a lane seeds the global generators for such a net; their state is restored afterwards
            with torch.random.fork_rng(devices=gpus):
                outcomes = list(self._train(plan, jobs))
            yield from outcomes
            return
        trained = self._train_as_it_can(plan, jobs)
        ours = is_ours(getattr(plan.loss, "__self__", None))
        yield from trained if ours else self._without_draws(trained, gpus)

    def _train_as_it_can(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Train, and where vmap cannot take a user's own loss or net, train clients one by one instead: it
        may branch on a tensor's values, or define gradients of its own."""
        begun = False
        try:
            for outcome in self._train(plan, jobs):
                begun = True
                yield outcome
            return
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if begun or self.width == 1:
                raise
            self.note(
                "several clients cannot be computed at once by this model or method: they train one by one "
                f"({first_line(error)})"
            )
        self.lanes.clear()
        self.width = 1
        yield from self._train(plan, jobs)

    def _without_draws(self, outcomes: Iterator[Outcome], gpus: Sequence[torch.device]) -> Iterator[Outcome]:
        """The outcomes; a UserError where a user's own loss has drawn from torch's global generators. No lane
        seeds those for a loss, so its draws could not be repeated."""
        before = _generators(gpus)
        for outcome in outcomes:
            if any(not torch.equal(*states) for states in zip(before, _generators(gpus), strict=True)):
                raise UserError(
                    "the method's loss draws numbers that are not its client's own: it takes them from "
                    "fedgela.randomness.uniform(client['draw'], ...), or use engine = eager"
                )
            yield outcome
            before = _generators(gpus)  # whoever received the outcome may have drawn

    def _train(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for recipe in self.recipes:
            recipe.net.train()
        waiting = deque(groups_of(jobs, self.batch_size, self.most_lanes, self.width))
        idle = list(reversed(self.lanes))
        busy: list[_Busy] = []
        while waiting or busy:
            while waiting and (idle or self._may_add()):
                lane = idle.pop() if idle else self._add()
                try:
                    lane.begin(plan, waiting[0])
                except torch.OutOfMemoryError:
                    self._give_up(lane)
                    waiting = deque(part for group in waiting for part in self._parts(group))
                else:
                    busy.append(_Busy(lane))
                    waiting.popleft()
            for run in list(busy):
                if run.go_on():
                    continue
                busy.remove(run)
                idle.append(run.lane)
                yield from run.lane.finish(self.device)
            if busy and all(run.is_ahead() for run in busy):
                busy[0].wait()

    def _may_add(self) -> bool:
        if len(self.lanes) >= self.most_lanes:
            return False
        device = self._next_device()
        if not self.lanes or device.type != "cuda":
            return True
        # a lane takes about as much as each one before it, and its clients' models come on top
        held = torch.cuda.memory_reserved(device) / max(1, sum(lane.device == device for lane in self.lanes))
        free, _ = torch.cuda.mem_get_info(device)
        if free > MEMORY_LEFT * held:
            return True
        self.note(f"{len(self.lanes)} lanes instead of {self.most_lanes}: there is no memory for more")
        self.most_lanes = len(self.lanes)
        return False

    def _next_device(self) -> torch.device:
        return self.devices[len(self.lanes) % len(self.devices)]

    def _add(self) -> Lane:
        recipe = self.recipes[len(self.lanes) % len(self.recipes)]
        self.lanes.append(Lane(recipe, self.width, self._next_device()))
        return self.lanes[-1]

    def _give_up(self, lane: Lane) -> None:
        """After running out of memory: go on with one lane fewer, or with fewer clients in the last lane."""
        if lane.stream is not None:
            lane.stream.synchronize()  # it may still read the memory that is freed below
        self.lanes.remove(lane)
        lane.forget_steps()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.lanes:
            self.most_lanes = len(self.lanes)
            self.note(f"out of memory: going on with {_counted(self.most_lanes, 'lane')}")
        elif self.width > 1:
            self.most_lanes, self.width = 1, self.width // 2
            self.note(f"out of memory: going on with one lane of {_counted(self.width, 'client')}")
        else:
            raise UserError(
                "out of memory with one client at a time; lower batch_size, or take a smaller model"
            ) from None

    def _parts(self, group: list[Job]) -> list[list[Job]]:
        """The group, split into parts of at most `width` clients."""
        return [group[i : i + self.width] for i in range(0, len(group), self.width)]

    # -- evaluation --------------------------------------------------------------------------------

    @torch.no_grad()
    def answers(self, predict: Predict, questions: Sequence[Question]) -> list[Tensor]:
        recipe = self.recipes[0]
        recipe.net.eval()
        answering = Answering(recipe.net, predict)
        # all questions are queued before the first answer is copied, which waits for the GPU
        predicted = [self._ask(answering, question, recipe.data) for question in questions]
        return [answer.cpu() for answer in predicted]

    def _ask(self, answering: Answering, question: Question, data: Dataset) -> Tensor:
        weights = {f"net.{name}": value for name, value in self._copied(question.model).items()}
        vectors, rows = on_device(question.vectors, self.device), on_device(question.rows, self.device)
        samples = question.samples.to(self.device)

        def part(start: int, size: int) -> Tensor:
            at = slice(start, start + size)
            x = data.inputs(data.x_test[samples[at]])
            of_part = vectors | {name: value[at] for name, value in rows.items()}
            logits: Tensor = functional_call(answering, weights, (x, of_part))
            return logits.argmax(dim=1)

        return self._in_parts(len(samples), part, torch.empty(0, dtype=torch.int64, device=self.device))

    @torch.no_grad()
    def features(self, model: State, samples: Tensor) -> Tensor:
        net, data = self.recipes[0].net, self.recipes[0].data
        net.eval()
        here = self._copied(model)
        samples = samples.to(self.device)

        def part(start: int, size: int) -> Tensor:
            x = data.inputs(data.x_train[samples[start : start + size]])
            z: Tensor = functional_call(net, here, (x,), {"only_features": True})
            return z

        return self._in_parts(len(samples), part, torch.empty(0, net.projection.out_features))

    def _copied(self, model: State) -> State:
        """A copy, laid out in memory as the template: a net may change its weights in evaluation too, as an
        embedding with max_norm does, and must not change those of the server or a client."""
        template = self.recipes[0].net.state_dict()
        return {name: torch.empty_like(value).copy_(model[name]) for name, value in template.items()}

    def _in_parts(self, count: int, part: Callable[[int, int], Tensor], none: Tensor) -> Tensor:
        """`part(start, size)` for consecutive parts of `count` samples, concatenated; `none` if there are no
        samples. Parts are made smaller when memory runs out."""
        done: list[Tensor] = []
        start = 0
        while start < count:
            size = self.evaluation_batch
            try:
                done.append(part(start, size))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                self.evaluation_batch = size // 2
                torch.cuda.empty_cache()
                self.note(f"out of memory: evaluating {self.evaluation_batch} samples at a time")
            else:
                start += size
        return torch.cat(done) if done else none

    def close(self) -> None:
        self.lanes.clear()


class _Busy:
    """A lane at work. On a GPU steps are queued in portions, and only a few ahead, so that the host gets to
    every lane in time."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.steps = lane.steps()
        self.marks: deque[torch.cuda.Event] = deque()
        self.more = True

    def go_on(self) -> bool:
        """Queue some more steps; False when all of the group's steps are done."""
        if self.is_ahead():
            return True
        if not self.more:
            return False
        with torch.cuda.stream(self.lane.stream):
            taken = sum(1 for _ in itertools.islice(self.steps, STEPS_AHEAD))
            self.more = taken == STEPS_AHEAD
            if self.lane.stream is not None:
                self.marks.append(self.lane.stream.record_event())
        return True

    def is_ahead(self) -> bool:
        """Whether so many steps are queued that no more should be; after the last portion, whether any is
        still running."""
        while self.marks and self.marks[0].query():  # type: ignore[no-untyped-call]
            self.marks.popleft()
        return len(self.marks) > (1 if self.more else 0)

    def wait(self) -> None:
        self.marks[0].synchronize()


def _on(net: Net, device: torch.device, stacked: bool) -> Net:
    """A template of the net on a device, prepared for one client at a time (channels last, for which the
    libraries' convolutions are fastest) or for several at once (by layers of our own)."""
    there = copy.deepcopy(net).to(device)
    if is_recurrent(there):
        keep_weights_in_place(there)
    if stacked:
        make_stackable(there)
        return there
    for weight in (*there.parameters(), *there.buffers()):
        if weight.dim() == 4:  # channels last is a layout of 4-dimensional tensors
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return there


def _generators(gpus: Sequence[torch.device]) -> list[Tensor]:
    """The states of torch's global random generators."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


def _unheard(text: str) -> None: ...


def _counted(n: int, what: str) -> str:
    return f"one {what}" if n == 1 else f"{n} {what}s"
