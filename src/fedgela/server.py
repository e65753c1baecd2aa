"""The round: select, train, aggregate, evaluate. What a round gives is written elsewhere (runs.py)."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedgela.algorithms import FedAvg, Moment, Phase, ServerState, Update, average
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.evaluation import (
    Record,
    accuracy,
    client_accuracies,
    mean_accuracy,
    mean_angles,
    train_loss,
)
from fedgela.models import (
    Net,
    State,
    batchnorm_entries,
    build_net,
)
from fedgela.randomness import generator
from fedgela.schedule import parse_schedule
from fedgela.tracking import Tracker
from fedgela.training import Engine, Job, Outcome, Plan, Question, choose, make_engine
from fedgela.training.interface import Predict

T = TypeVar("T")

PLAIN = FedAvg()  # cross-entropy, for fine-tuning
FINETUNED_AT_ONCE = 64


class ClientStore(Protocol):
    """Where clients keep their last local models between rounds."""

    def get(self, client: int) -> State | None: ...

    def put(self, client: int, model: State) -> None: ...


class InMemoryStore(dict[int, State]):
    """A store for runs without a folder."""

    def put(self, client: int, model: State) -> None:
        self[client] = model


@dataclass
class Progress:
    """All that a run carries from round to round; a checkpoint is this and the clients' models."""

    server: ServerState
    visited: Tensor  # [N], int64: the last round in which a client trained, 0 before its first
    right: Tensor  # [N, C], int64: own test samples that the client's last local model got right
    right_on_union: Tensor  # [N, C]: the same on the union of the test sets, where GA is of local models
    round: int = 0
    best_round: int = 0
    best_GA: float = -1.0
    best_model: State = field(default_factory=dict)  # of the best GA so far


@dataclass(frozen=True)
class Visit:
    """What comes back from one client's part in a round: its update, and what was measured on it."""

    update: Update
    own_norm: State  # BatchNorm that does not travel, for the global model's evaluation only
    loss_sum: Tensor  # [C], see Outcome
    loss_count: Tensor  # [C]
    classifier: Tensor | None = None  # [C, d], of its local model
    right: Tensor | None = None  # [C]: own test samples that its local model got right
    right_on_union: Tensor | None = None  # [C]: the same on the union, where GA is of local models
    tracked: Tensor | None = None  # [M]: what `track` asks for, of its local model


class Server:
    """One run's server, with its clients simulated by an engine."""

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        store: ClientStore | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`experiment` is a resolved one (see `resolve`); the server's own has its engine chosen too. `note`
        hears what a user should know of how the engine fares."""
        self.experiment = experiment
        self.algorithm: FedAvg = experiment.algorithm
        self.store: ClientStore = InMemoryStore() if store is None else store
        self.device = device = torch.device(experiment.device)
        self.federation = federation.on(device)
        # who trains: the clients, or for the Centralised bound one client with all their data
        self.trainees = self.federation.pooled() if self.algorithm.pooled else self.federation
        self.net = self._build_net(device)
        self.own_norm = self._own_norm()
        self.keeps_models = self.algorithm.keeps_model or bool(self.own_norm)
        self.experiment = choose(experiment, self.net, self.trainees)
        self.engine: Engine = make_engine(self.experiment, self.net, self.federation.data, note)
        self.tracker = (
            Tracker(self.experiment, self.net, self.federation, self.engine, self.own_norm)
            if experiment.track
            else None
        )
        self.schedule = parse_schedule(experiment.schedule)
        self.union = torch.arange(len(federation.data.y_test))
        self.test_labels = federation.data.y_test.cpu()

    def _build_net(self, device: torch.device) -> Net:
        data, seed = self.federation.data, self.experiment.seed
        d = _set(self.experiment.projection)
        return build_net(
            _set(self.experiment.model),
            data.spec,
            d,
            lambda: self.algorithm.head(d, data.classes, seed),
            seed,
            pretrained=self.experiment.pretrained,
            weights=self.experiment.weights,
            batchnorm=self.experiment.batchnorm,
        ).to(device)

    def _own_norm(self) -> State:
        """The initial BatchNorm of every client, where it is the client's own for good, as in FedBN: what
        would travel, but does not."""
        if self.experiment.batchnorm != "local" or self.algorithm.pooled:
            return {}
        entries = batchnorm_entries(self.net)
        return {
            name: value.detach().clone()
            for name, value in self.net.state_dict().items()
            if name in entries and self.algorithm.travels(name)
        }

    @property
    def _scores_on_union(self) -> bool:
        return self.algorithm.GA_of == "locals" or "GA_locals" in self.algorithm.beside

    def begin(self) -> Progress:
        """The state before the first round."""
        N, C = self.federation.train_counts.shape
        model = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        return Progress(
            server=ServerState(model, self._initial_extra()),
            visited=torch.zeros(N, dtype=torch.int64),
            right=torch.zeros(N, C, dtype=torch.int64),
            right_on_union=torch.zeros(N, C, dtype=torch.int64),
        )

    def _initial_extra(self) -> State:
        """The method's own, and the mean over clients, weighted by p_k, of what it declares to share."""
        C, d = self.federation.data.classes, _set(self.experiment.projection)
        own = self.algorithm.initial_extra(d, C, self.experiment.seed)
        counts = self.trainees.train_counts
        stacked = self.algorithm.statistics(counts)
        p = counts.sum(dim=1).double() / counts.sum()
        means = {name: (p @ value).float() for name, value in stacked.items()}
        return {name: value.to(self.device) for name, value in (own | means).items()}

    # -- a round -----------------------------------------------------------------------------------

    def step(self, progress: Progress) -> Record:
        """Run the next round; `progress` moves on, and the round's metrics come back."""
        began = time.perf_counter()
        progress.round += 1
        selected = self.select(progress.round)
        plan = self.plan(progress)
        visits = self.visits(progress, plan, selected)
        for visit in visits:
            client = visit.update.client
            if visit.right is not None:
                progress.visited[client] = progress.round
                progress.right[client] = visit.right
            if visit.right_on_union is not None:
                progress.right_on_union[client] = visit.right_on_union
        if visits:
            self._aggregate(progress, [visit.update for visit in visits])
        norms = [replace(visit.update, model=visit.own_norm, extra={}) for visit in visits]
        if self.own_norm and norms:
            # FedBN has no global BatchNorm: for the global model's evaluation only, the mean of this round's
            server = progress.server
            progress.server = replace(server, model={**server.model, **average(norms)})

        record: Record = {"round": progress.round, "lr": plan.lr}
        if not self.algorithm.pooled:
            record["clients"] = selected
        nothing = torch.zeros(1, dtype=torch.float64)
        loss_sum = sum((visit.loss_sum for visit in visits), nothing)
        record |= train_loss(loss_sum, sum((visit.loss_count for visit in visits), nothing))
        if self._evaluates(progress.round):
            record |= self._evaluate(progress)
            classifiers = [visit.classifier for visit in visits if visit.classifier is not None]
            record |= self._angles(progress, selected, classifiers)
            if self.tracker is not None:
                record |= self.tracker.server(progress.server.model, self._present(selected))
                tracked = [visit.tracked for visit in visits if visit.tracked is not None]
                record |= self.tracker.mean_over_clients(tracked)
        record["seconds"] = round(time.perf_counter() - began, 4)
        return record

    def visits(self, progress: Progress, plan: Plan, clients: Sequence[int]) -> list[Visit]:
        """Train these clients; their models are scored on their own test sets, unaggregated, and kept."""
        jobs = [self.job(progress, client) for client in clients]
        outcomes = list(_in_order(jobs, self.engine.train(plan, jobs)))
        visits = [
            Visit(
                self.update(outcome),
                {name: outcome.model[name] for name in self.own_norm},
                outcome.loss_sum,
                outcome.loss_count,
            )
            for _, outcome in outcomes
        ]
        if self.algorithm.pooled:
            return visits
        if self.keeps_models:
            for _, outcome in outcomes:
                self.store.put(outcome.client, _cpu(outcome.model))
        visits = self._scored(progress, visits, outcomes)
        if self.tracker is None or not self._evaluates(progress.round):
            return visits
        present, model = self._present(clients), progress.server.model
        return [
            replace(visit, tracked=self.tracker.client(outcome.model, job.vectors, here, model))
            for visit, (job, outcome), here in zip(visits, outcomes, present, strict=True)
        ]

    def _evaluates(self, round: int) -> bool:
        return round % self.experiment.eval_every == 0 or round == self.experiment.rounds

    def plan(self, progress: Progress) -> Plan:
        """How the clients of the current round train."""
        e, algorithm = self.experiment, self.algorithm
        lr = e.lr * self.schedule(progress.round, e.rounds)
        return Plan(algorithm.loss, algorithm.phases(e.epochs), lr, e.seed, "batches", progress.round)

    def select(self, round: int) -> list[int]:
        """K of the clients that can train, drawn for this round."""
        able = torch.tensor(self.able())
        draw = torch.randperm(len(able), generator=generator(self.experiment.seed, "select", round))
        chosen = able[draw[: _set(self.experiment.sample)]]
        return sorted(chosen.tolist())

    def able(self) -> list[int]:
        """The clients that have training data."""
        return torch.from_numpy(self.trainees.train.sizes).nonzero().flatten().tolist()

    def job(self, progress: Progress, client: int) -> Job:
        algorithm, server = self.algorithm, progress.server
        model = self._as_seen_by(client, server.model)
        last = self.store.get(client) if algorithm.keeps_model else None
        return Job(
            client,
            self.trainees.train[client],
            algorithm.start(model, last),
            algorithm.client_vectors(self.trainees.train_counts[client], server.extra),
            server.extra | algorithm.references(model, last),
        )

    def _as_seen_by(self, client: int, model: State) -> State:
        """The global model with what is the client's own in it: BatchNorm, where that is local."""
        if not self.own_norm:
            return model
        last = self.store.get(client) or self.own_norm
        return model | {name: last[name] for name in self.own_norm}

    def _moment(self, progress: Progress) -> Moment:
        return Moment(self.experiment.seed, progress.round)

    def update(self, outcome: Outcome) -> Update:
        algorithm, k = self.algorithm, outcome.client
        samples = self.trainees.train[k]

        def features() -> tuple[Tensor, Tensor]:
            z = self.engine.features(outcome.model, samples)
            return z, self.trainees.data.y_train[samples.to(z.device)]

        travelling = {
            name: value
            for name, value in outcome.model.items()
            if algorithm.travels(name) and name not in self.own_norm and value.is_floating_point()
        }
        extra = algorithm.sends(self.trainees.train_counts[k], features)
        return Update(k, len(samples), travelling, extra)

    def _scored(
        self, progress: Progress, visits: Sequence[Visit], outcomes: Sequence[tuple[Job, Outcome]]
    ) -> list[Visit]:
        """The visits with what the local models got right, and their classifiers."""
        predict = self.algorithm.predict_personal
        questions = [
            Question(outcome.model, self.federation.test[job.client], job.vectors | progress.server.extra)
            for job, outcome in outcomes
        ]
        answers = self.engine.answers(predict, questions)
        scored = [
            replace(
                visit,
                classifier=self._classifier(outcome.model, job.vectors),
                right=self._right(answer, question.samples),
            )
            for visit, question, answer, (job, outcome) in zip(
                visits, questions, answers, outcomes, strict=True
            )
        ]
        if not self._scores_on_union:
            return scored
        everything = [replace(question, samples=self.union) for question in questions]
        answers = self.engine.answers(predict, everything)
        return [
            replace(visit, right_on_union=self._right(answer, self.union))
            for visit, answer in zip(scored, answers, strict=True)
        ]

    def _aggregate(self, progress: Progress, updates: Sequence[Update]) -> None:
        e, before = self.experiment, progress.server
        after = self.algorithm.aggregate(before, updates, self._moment(progress))
        if e.server_lr != 1.0 or e.server_momentum > 0:
            after = replace(after, private=dict(after.private))
            # FedAvgM: the averaged change is a gradient for the server; running statistics only average
            parameters = {name for name, _ in self.net.named_parameters()}
            for name in parameters & updates[0].model.keys():
                change = before.model[name] - after.model[name]
                held = before.private.get(f"momentum/{name}")
                if held is not None:
                    change = e.server_momentum * held + change
                after.private[f"momentum/{name}"] = change
                after.model[name] = before.model[name] - e.server_lr * change
        progress.server = after

    # -- evaluation --------------------------------------------------------------------------------

    def _right(self, predicted: Tensor, samples: Tensor) -> Tensor:
        """Right answers by class, [C]."""
        labels = self.test_labels[samples]
        return torch.bincount(labels[predicted == labels], minlength=self.federation.data.classes)

    def _global_answers(self, model: State) -> Tensor:
        return self._answer(partial(_global_logits, self.algorithm), Question(model, self.union))

    def right_by_global(self, model: State, client: int) -> Tensor:
        """Right answers [C] of the global model on a client's own test set, as the client sees it."""
        samples = self.federation.test[client]
        question = Question(self._as_seen_by(client, model), samples)
        return self._right(self._answer(partial(_global_logits, self.algorithm), question), samples)

    def _answer(self, predict: Predict, question: Question) -> Tensor:
        return self.engine.answers(predict, [question])[0]

    def _evaluate(self, progress: Progress) -> Record:
        algorithm, model = self.algorithm, progress.server.model
        totals = self.federation.test_counts
        union_totals = totals.sum(dim=0)
        record: Record = {}

        if algorithm.GA_of == "global" or algorithm.PA_of == "global":
            predicted = self._global_answers(model)
            record |= accuracy("GA", self._right(predicted, self.union), union_totals)
            if algorithm.PA_of == "global":
                record |= mean_accuracy("PA", self._right_by_client(predicted), totals)
        if self._scores_on_union:
            self._score_newcomers_on_union(progress)
            spread = mean_accuracy("GA_locals", progress.right_on_union, union_totals.expand_as(totals))
            if algorithm.GA_of == "locals":
                spread = {k.replace("GA_locals", "GA"): v for k, v in spread.items()}
            record |= spread
        if not algorithm.pooled:
            self._score_newcomers(progress)
            record |= mean_accuracy("local_accuracy", progress.right, totals)
            if algorithm.PA_of == "local":
                record |= mean_accuracy("PA", progress.right, totals)

        GA = record["GA"]
        if GA is not None and progress.best_GA < GA:
            progress.best_GA, progress.best_round = GA, progress.round
            progress.best_model = model
        return record

    def _right_by_client(self, predicted: Tensor) -> Tensor:
        """Right answers on the union by owner and class, [N, C]."""
        N, C = self.federation.test_counts.shape
        hit = predicted == self.test_labels
        cell = self.federation.test.owner * C + self.test_labels
        return torch.bincount(cell[hit], minlength=N * C).view(N, C)

    def _score_newcomers(self, progress: Progress) -> None:
        """A client that has not trained yet has the current global body with its own initial head."""
        new = progress.visited == 0
        samples = new[self.federation.test.owner].nonzero().flatten()
        if len(samples) == 0:
            return
        # all newcomers at once: one row of client vectors a sample
        owner = self.federation.test.owner[samples]
        extra = progress.server.extra
        rows = self.algorithm.client_vectors(self.federation.train_counts[owner], extra)
        question = Question(progress.server.model, samples, extra, rows)
        predicted = self._answer(self.algorithm.predict_personal, question)
        answers = torch.full_like(self.test_labels, -1)
        answers[samples] = predicted
        progress.right[new] = self._right_by_client(answers)[new]

    def _score_newcomers_on_union(self, progress: Progress) -> None:
        new = progress.visited == 0
        if new.any():
            # methods whose GA is of local models predict the union alike for all newcomers
            server = progress.server
            nobody = torch.zeros_like(self.federation.train_counts[0])
            vectors = self.algorithm.client_vectors(nobody, server.extra)
            question = Question(server.model, self.union, vectors | server.extra)
            predicted = self._answer(self.algorithm.predict_personal, question)
            progress.right_on_union[new] = self._right(predicted, self.union)

    def _angles(self, progress: Progress, selected: Sequence[int], classifiers: Sequence[Tensor]) -> Record:
        present = self._present(selected)
        record: Record = {}
        if classifiers:
            record |= mean_angles("clients", torch.stack(list(classifiers)), present)
        return record | mean_angles("server", self._classifier(progress.server.model, {}), present)

    def _present(self, clients: Sequence[int]) -> Tensor:
        """Which classes these clients have, [K, C]; all clients, where their data is pooled."""
        counts = self.federation.train_counts
        return (counts if self.algorithm.pooled else counts[list(clients)]) > 0

    def _classifier(self, model: State, vectors: State) -> Tensor:
        """The classifier vectors on the CPU, without moving the whole model there."""
        there = {name: value.to(self.device) for name, value in vectors.items()}
        return self.algorithm.classifier(model, there).cpu()

    def close(self) -> None:
        """Give back the engine's processes."""
        self.engine.close()

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, progress: Progress) -> Record:
        """What is measured once, after the last round: fine-tuned personal models."""
        record: Record = {}
        if self.algorithm.PA_of == "finetuned" or "PA_finetuned" in self.algorithm.beside:
            totals = self.federation.test_counts
            name = "PA" if self.algorithm.PA_of == "finetuned" else "PA_finetuned"
            for which, round, model in (
                ("best", progress.best_round, progress.best_model),
                ("last", progress.round, progress.server.model),
            ):
                if which == "last" and round == progress.best_round:
                    record["last"] = record["best"]
                    continue
                right = self.finetuned(model, round, range(self.federation.clients))
                record[which] = mean_accuracy(name, right, totals) | {
                    "round": round,
                    "by_client": client_accuracies(right, totals),
                }
        return record

    def finetuned(self, model: State, round: int, clients: Sequence[int]) -> Tensor:
        """Right answers [N, C] of the global model fine-tuned on these clients: plain cross-entropy, all
        parameters, `finetune_epochs` epochs at the run's learning rate."""
        e = self.experiment
        plan = Plan(PLAIN.loss, (Phase(e.finetune_epochs),), e.lr, e.seed, "finetune", round)
        right = torch.zeros_like(self.federation.test_counts)
        for start in range(0, len(clients), FINETUNED_AT_ONCE):  # their models need not all be held at once
            jobs = [
                Job(k, self.federation.train[k], self._as_seen_by(k, model))
                for k in clients[start : start + FINETUNED_AT_ONCE]
            ]
            outcomes = list(self.engine.train(plan, jobs))
            questions = [
                Question(outcome.model, self.federation.test[outcome.client]) for outcome in outcomes
            ]
            answers = self.engine.answers(PLAIN.predict_personal, questions)
            for outcome, question, answer in zip(outcomes, questions, answers, strict=True):
                right[outcome.client] = self._right(answer, question.samples)
        return right


def _global_logits(algorithm: FedAvg, net: Net, x: Tensor, client: State) -> Tensor:
    return algorithm.predict_global(net, x)


def _in_order(jobs: Sequence[Job], outcomes: Iterable[Outcome]) -> Iterator[tuple[Job, Outcome]]:
    """Jobs with their outcomes in the order of the jobs: sums must not depend on who ends first."""
    early: dict[int, Outcome] = {}
    waiting = list(reversed(jobs))
    for outcome in outcomes:
        early[outcome.client] = outcome
        while waiting and waiting[-1].client in early:
            job = waiting.pop()
            yield job, early.pop(job.client)


def _cpu(state: State) -> State:
    """On the CPU; from a GPU in one copy for all tensors of a type, since each copy waits for the GPU."""
    if all(value.device.type == "cpu" for value in state.values()):
        return state
    there: State = {}
    for dtype in {value.dtype for value in state.values()}:
        same = {name: value for name, value in state.items() if value.dtype == dtype}
        flat = torch.cat([value.flatten() for value in same.values()]).cpu()
        parts = torch.split(flat, [value.numel() for value in same.values()])
        there |= {name: part.view(state[name].shape).clone() for name, part in zip(same, parts, strict=True)}
    return {name: there[name] for name in state}


def _set(value: T | None) -> T:
    """A value that `resolve` has filled in."""
    assert value is not None, "the experiment is not resolved"
    return value
