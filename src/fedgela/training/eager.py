"""The plain engine: one client after another, one step after another, in plain PyTorch on any device. It is
slow and simple, and what the fast engines are tested against."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedgela.data import Dataset
from fedgela.models import Net, State, plain_copy
from fedgela.operations.dispatch import plain_pytorch
from fedgela.randomness import seed_torch
from fedgela.training.interface import Job, Outcome, Plan, Predict, Question, batches, first_draw, losses_of
from fedgela.training.optimiser import Optimiser


class EagerEngine:
    """Holds one net, into which each client's state is loaded in turn."""

    EVALUATION_BATCH = 1000
    workers_memory = 0  # there are none

    def __init__(
        self, net: Net, data: Dataset, device: torch.device, optimiser: Optimiser, batch_size: int
    ) -> None:
        self.net = net.to(device)
        self.data = data
        self.device = device
        self.optimiser = optimiser
        self.batch_size = batch_size

    def train(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for job in jobs:
            # a net's own draws (dropout) come from the global generator: seeded by client and round
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                seed_torch(first_draw(plan, job.client))
                outcome = self._train_one(plan, job)
            yield outcome

    @plain_pytorch()
    def _train_one(self, plan: Plan, job: Job) -> Outcome:
        data, net = self.data, self.net
        self._load(job.start)
        net.train()
        client = self._here({**job.vectors, **job.references})
        draw = client["draw"] = torch.tensor(first_draw(plan, job.client), device=self.device)
        loss_sum = torch.zeros(data.classes, device=self.device)
        loss_count = torch.zeros(data.classes, device=self.device)
        epochs_before = 0
        for phase in plan.phases:
            trained = []
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(phase.selects(name) and name not in net.frozen)
                if parameter.requires_grad:
                    trained.append(parameter)
            # momentum buffers from the start: torch's fused SGD fails where a parameter gets its first
            # gradient later than others, as in layers that are skipped at random
            slots = [self.optimiser.slots(parameter) for parameter in trained]
            optimiser = self.optimiser.over(trained, plan.lr, slots)
            for epoch in range(epochs_before, epochs_before + phase.epochs):
                index = batches(plan, job.client, epoch, job.samples, self.batch_size).to(self.device)
                for batch in index:
                    x, y = data.training_inputs(data.x_train[batch], draw), data.y_train[batch]
                    loss = losses_of(plan.loss, net, x, y, client)
                    optimiser.zero_grad(set_to_none=True)
                    loss.mean().backward()  # type: ignore[no-untyped-call]
                    if self.optimiser.clip_norm > 0:
                        nn.utils.clip_grad_norm_(trained, self.optimiser.clip_norm)
                    optimiser.step()
                    loss_sum.index_add_(0, y, loss.detach())
                    loss_count.index_add_(0, y, torch.ones_like(loss))
                    draw += 1
            epochs_before += phase.epochs
        model = {name: plain_copy(value) for name, value in net.state_dict().items()}
        return Outcome(job.client, model, loss_sum.cpu(), loss_count.cpu())

    def answers(self, predict: Predict, questions: Sequence[Question]) -> list[Tensor]:
        return [self._answer(predict, question) for question in questions]

    @plain_pytorch()
    @torch.no_grad()
    def _answer(self, predict: Predict, question: Question) -> Tensor:
        data = self.data
        self._load(question.model)
        self.net.eval()
        vectors, rows = self._here(question.vectors), self._here(question.rows)
        samples = question.samples.to(self.device)
        predicted = torch.empty(len(samples), dtype=torch.int64, device=self.device)
        for start in range(0, len(samples), self.EVALUATION_BATCH):
            part = slice(start, start + self.EVALUATION_BATCH)
            of_part = vectors | {name: value[part] for name, value in rows.items()}
            x = data.inputs(data.x_test[samples[part]])
            predicted[part] = predict(self.net, x, of_part).argmax(dim=1)
        return predicted.cpu()

    @plain_pytorch()
    @torch.no_grad()
    def features(self, model: State, samples: Tensor) -> Tensor:
        data = self.data
        self._load(model)
        self.net.eval()
        parts = torch.split(samples.to(self.device), self.EVALUATION_BATCH)
        return torch.cat([self.net.features(data.inputs(data.x_train[part])) for part in parts])

    def close(self) -> None: ...

    def _here(self, state: State) -> State:
        """A copy on this device: a teacher's net may change the weights that it is run with."""
        return {name: value.to(self.device, copy=True) for name, value in state.items()}

    @torch.no_grad()
    def _load(self, model: State) -> None:
        for name, value in self.net.state_dict().items():
            value.copy_(model[name])
