"""The round: select, train, aggregate, evaluate. Its results are written by runs.py."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgela.aggregation import Rule, check_rule, parse_aggregation, server_step
from fedgela.algorithms import (
    FedAvg,
    Moment,
    Phase,
    ServerState,
    Update,
    average,
    mean_statistics,
    travelling,
)
from fedgela.algorithms.own import aggregated, check_method, handed_to
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.evaluation import Record, client_accuracies, mean_accuracy, mean_angles, train_loss
from fedgela.models import State, batchnorm_entries, on_cpu, on_device, plain_copy
from fedgela.models.own import OwnBackbone
from fedgela.nets import initial_net
from fedgela.randomness import generator
from fedgela.rounds import ClientStore, InMemoryStore, Progress, Visit
from fedgela.schedule import parse_schedule
from fedgela.scoring import Scorer
from fedgela.tracking import Tracker
from fedgela.training import Engine, Job, Outcome, Plan, Question, choose, make_engine
from fedgela.training.single_sample import check_single_samples

PLAIN = FedAvg()  # cross-entropy, for fine-tuning
FINETUNED_AT_ONCE = 64


class Server:
    """One run's server, with its clients simulated by an engine.

    Where clients are elsewhere (flower/), a subclass overrides `visits` and `finetuned`, and what it knows
    less of: who is there (`able`), the initial state, and the figures of a round (`_evaluate`, `_angles`).
    """

    # whether a round's seconds of training and of evaluation can be told apart
    evaluates_apart: ClassVar[bool] = True

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        store: ClientStore | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`experiment` comes from `resolve`; in `self.experiment` the engine is chosen, too. `note` is called
        with what a user should know, such as that memory ran out."""
        assert experiment.sample is not None, "the experiment is resolved"
        self.experiment = experiment
        self.sample = experiment.sample  # K
        self.note = note
        self.algorithm: FedAvg = experiment.algorithm
        self.store: ClientStore = InMemoryStore() if store is None else store
        self.device = device = torch.device(experiment.device)
        self.federation = federation.on(device)
        # who trains: the clients, or for the Centralised bound one client with all their data
        self.trainees = self.federation.pooled() if self.algorithm.pooled else self.federation
        self.net = initial_net(experiment, federation.data).to(device)
        data = federation.data
        backbone = self.net.backbone
        if isinstance(backbone, OwnBackbone) and backbone.width == data.classes:
            note(
                f"{experiment.model} gives as many features as there are classes, {data.classes}: if its "
                "last layer classifies, leave that out, since a projection and a head come after it"
            )
        if isinstance(backbone, OwnBackbone) and backbone.mixes:
            note(
                f"{experiment.model} answers otherwise for a sample alone than among others, as where layers "
                "lack batch_first, or BatchNorm its running statistics: accuracies depend on which samples "
                "are asked together"
            )
        check_method(self.algorithm, self.net, data.spec, data.classes, experiment.epochs)
        check_single_samples(experiment, self.net, self.trainees)
        self.own_norm = self._own_norm()
        self.rule = self._rule()
        self.buffers = {name for name, _ in self.net.named_buffers(remove_duplicate=False)}
        self.keeps_models = self.algorithm.keeps_model or bool(self.own_norm)
        self.needed_of_last = self._needed_of_last()
        self.experiment = choose(experiment, self.net, self.trainees)
        self.engine: Engine = make_engine(self.experiment, self.net, self.federation.data, note)
        self.tracker = (
            Tracker(self.experiment, self.net, self.federation, self.engine, self.own_norm)
            if experiment.track
            else None
        )
        self.schedule = parse_schedule(experiment.schedule)
        self.scorer: Scorer = Scorer(self.algorithm, self.federation, self.engine, self.own_norm)
        self._evaluating = 0.0  # seconds of the round so far

    def _rule(self) -> Rule | None:
        """The robust rule by which updates become one; None for the method's own mean. Where no model
        travels, this and what else is asked for does nothing, which is noted."""
        e, rule = self.experiment, parse_aggregation(self.experiment.aggregation)
        if rule is not None:
            check_rule(rule, self.algorithm, self.sample)
        alone = not self.travelling(self.net.state_dict())
        in_vain = {
            "aggregation": rule is not None and (alone or self.algorithm.pooled),
            "server_lr": e.server_lr != 1.0 and alone,
            "server_momentum": e.server_momentum > 0 and alone,
        }
        for key in (key for key, vain in in_vain.items() if vain):
            self.note(f"{key} does nothing: {self.algorithm.title} averages no models of clients")
        return None if in_vain["aggregation"] else rule

    def _needed_of_last(self) -> set[str] | None:
        """The entries of a client's last local model that its next visit needs, and so reads from disk: those
        that do not travel; None, all of them, where the method itself uses the last model."""
        method = type(self.algorithm)
        if method.start is not FedAvg.start or method.references is not FedAvg.references:
            return None
        return {name for name in self.net.state_dict() if not self.algorithm.travels(name)}

    def begin(self) -> Progress:
        """The state before the first round."""
        N, C = self.federation.train_counts.shape
        model = {name: plain_copy(value) for name, value in self.net.state_dict().items()}
        return Progress(
            server=ServerState(model, self._initial_extra()),
            visited=torch.zeros(N, dtype=torch.int64),
            right=torch.zeros(N, C, dtype=torch.int64),
            right_on_union=torch.zeros(N, C, dtype=torch.int64),
        )

    def _initial_extra(self) -> State:
        """What the method has the server hold, and the mean of what it has clients send before training."""
        C, d = self.federation.data.classes, self.net.projection.out_features
        own = self.algorithm.initial_extra(d, C, self.experiment.seed)
        means = mean_statistics(self.algorithm, self.trainees.train_counts)
        return on_device(own | means, self.device)

    # -- a round -----------------------------------------------------------------------------------

    def step(self, progress: Progress) -> Record:
        """Run the next round; `progress` moves on, and the round's metrics come back."""
        began = time.perf_counter()
        self._evaluating = 0.0
        progress.round += 1
        selected = self.select(progress.round)
        plan = self.plan(progress)
        self._keep_norms(progress, selected)
        visits = self.visits(progress, plan, selected)
        record: Record = {"round": progress.round, "lr": plan.lr}
        if not self.algorithm.pooled:
            record["clients"] = selected
        if visits:
            loss_sum, loss_count = _sum(v.loss_sum for v in visits), _sum(v.loss_count for v in visits)
            record |= train_loss(loss_sum, loss_count)
            self._take_in(progress, visits)
        if self.experiment.server_average > 0 and self.algorithm.GA_of == "global":
            progress.average(self.experiment.server_average)
        if self._evaluates(progress.round):
            with self._evaluation():
                record |= self._measured(progress, selected, visits)
        seconds = time.perf_counter() - began
        record["seconds"] = round(seconds, 4)
        if self.evaluates_apart:
            record["training_seconds"] = round(seconds - self._evaluating, 4)
        return record

    def _take_in(self, progress: Progress, visits: Sequence[Visit]) -> None:
        """What the clients' visits change: when each trained last, what it got right, the global model."""
        for visit in visits:
            client = visit.update.client
            if not self.algorithm.pooled:
                progress.visited[client] = progress.round
            if visit.right is not None:
                progress.right[client] = visit.right
            if visit.right_on_union is not None:
                progress.right_on_union[client] = visit.right_on_union
        self._aggregate(progress, [visit.update for visit in visits])
        if self.own_norm:
            self._average_norms(progress, visits)

    def _measured(self, progress: Progress, selected: Sequence[int], visits: Sequence[Visit]) -> Record:
        """The figures of a round that is evaluated (see `eval_every`)."""
        record = self._evaluate(progress)
        progress.keep_best(record["GA"])
        classifiers = [visit.classifier for visit in visits if visit.classifier is not None]
        record |= self._angles(progress, selected, classifiers)
        if self.tracker is not None:
            record |= self.tracker.server(progress.global_model, self._present(selected))
            tracked = [visit.tracked for visit in visits if visit.tracked is not None]
            record |= self.tracker.mean_over_clients(tracked)
        return record

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Time spent within it does not count as training: how much there is to score differs by method."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # training that is still queued on the GPU ends first
        began = time.perf_counter()
        yield
        self._evaluating += time.perf_counter() - began

    def visits(self, progress: Progress, plan: Plan, clients: Sequence[int]) -> list[Visit]:
        """Train these clients, keep their local models, and score them before they are aggregated."""
        jobs = [self.job(progress, client) for client in clients]
        ended = {outcome.client: outcome for outcome in self.engine.train(plan, jobs)}
        # in the order of the jobs: sums must not depend on which client ends first
        outcomes = [(job, ended[job.client]) for job in jobs]
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
                self.store.put(outcome.client, on_cpu(outcome.model))
        if self._scores_locals(progress.round):
            with self._evaluation():
                return self._scored(progress, visits, outcomes)
        return visits

    def _evaluates(self, round: int) -> bool:
        return round % self.experiment.eval_every == 0 or round == self.experiment.rounds

    def _scores_locals(self, round: int) -> bool:
        """Whether local models are scored: also in a round that is not evaluated, if a client may not train
        again before one that is."""
        return self._evaluates(round) or self.sample < len(self.able())

    def plan(self, progress: Progress) -> Plan:
        """How the clients of the current round train."""
        e, algorithm = self.experiment, self.algorithm
        lr = e.lr * self.schedule(progress.round, e.rounds)
        return Plan(algorithm.loss, algorithm.phases(e.epochs), lr, e.seed, "batches", progress.round)

    def select(self, round: int) -> list[int]:
        """K of the clients that can train, drawn for this round."""
        able = torch.tensor(self.able())
        draw = torch.randperm(len(able), generator=generator(self.experiment.seed, "select", round))
        chosen = able[draw[: self.sample]]
        return sorted(chosen.tolist())

    def able(self) -> list[int]:
        """The clients that have training data."""
        return torch.from_numpy(self.trainees.train.sizes).nonzero().flatten().tolist()

    def job(self, progress: Progress, client: int) -> Job:
        algorithm, server = self.algorithm, progress.server
        model = self._as_seen_by(client, server.model)
        last = self.store.get(client, self.needed_of_last) if algorithm.keeps_model else None
        if last is not None:
            last = handed_to(algorithm, last)
        return Job(
            client,
            self.trainees.train[client],
            algorithm.start(model, last),
            algorithm.client_vectors(self.trainees.train_counts[client], server.extra),
            server.extra | algorithm.references(model, last),
        )

    def update(self, outcome: Outcome) -> Update:
        algorithm, k = self.algorithm, outcome.client
        samples = self.trainees.train[k]

        def features() -> tuple[Tensor, Tensor]:
            z = self.engine.features(outcome.model, samples)
            return z, self.trainees.data.y_train[samples.to(z.device)]

        extra = algorithm.sends(self.trainees.train_counts[k], features)
        return Update(k, len(samples), self.travelling(outcome.model), extra)

    def travelling(self, model: State) -> State:
        return travelling(self.algorithm, model, self.own_norm)

    def _scored(
        self, progress: Progress, visits: Sequence[Visit], outcomes: Sequence[tuple[Job, Outcome]]
    ) -> list[Visit]:
        """The visits, completed with what is measured of the local models."""
        server = progress.server
        scores = self.scorer.by_locals(outcomes, server.extra)
        present = self._present([job.client for job, _ in outcomes])
        tracker = self.tracker if self._evaluates(progress.round) else None
        return [
            replace(
                visit,
                classifier=self._classifier(outcome.model, job.vectors),
                right=right,
                right_on_union=on_union,
                tracked=tracker.client(outcome.model, job.vectors, here, server.model) if tracker else None,
            )
            for visit, (right, on_union), (job, outcome), here in zip(
                visits, scores, outcomes, present, strict=True
            )
        ]

    def _together(self, before: State, updates: Sequence[Update]) -> Sequence[Update]:
        """The updates as they are averaged: all as one where a robust rule has them so, none where they are
        too few for it."""
        if self.rule is None:
            return updates
        together = self.rule.together(before, updates, self.buffers)
        return [] if together is None else [together]

    def _aggregate(self, progress: Progress, updates: Sequence[Update]) -> None:
        e, before = self.experiment, progress.server
        updates = self._together(before.model, updates)
        if not updates:
            self.note(
                f"round {progress.round}: too few updates of finite numbers for aggregation = "
                f"{e.aggregation!r}; the global model stays as it is"
            )
            return
        after = aggregated(self.algorithm, before, updates, Moment(e.seed, progress.round))
        if e.server_lr != 1.0 or e.server_momentum > 0:
            parameters = updates[0].model.keys() - self.buffers  # not BatchNorm's running statistics
            after = server_step(before, after, parameters, e.server_lr, e.server_momentum)
        progress.server = after

    # -- BatchNorm that stays with its client (FedBN) ----------------------------------------------

    def _own_norm(self) -> State:
        """The initial values of the BatchNorm entries that would travel, but stay with their clients since
        `batchnorm` is local, as in FedBN."""
        if self.experiment.batchnorm != "local" or self.algorithm.pooled:
            return {}
        entries = batchnorm_entries(self.net)
        return {
            name: value.detach().clone()
            for name, value in self.net.state_dict().items()
            if name in entries and self.algorithm.travels(name)
        }

    def _as_seen_by(self, client: int, model: State) -> State:
        """The global model, in which BatchNorm is the client's own where it does not travel."""
        return model | self._norm_of(client) if self.own_norm else model

    def _norm_of(self, client: int) -> State:
        last = self.store.get(client, self.own_norm) or self.own_norm
        return {name: last[name] for name in self.own_norm}

    def _keep_norms(self, progress: Progress, clients: Sequence[int]) -> None:
        """Before these clients train: keep the BatchNorm that they had in the best round with the best model.
        As copies, since a tensor that is a part of a client's model keeps all of it in memory."""
        if self.own_norm and progress.best_round:
            for client in clients:
                if client not in progress.best_norms:
                    norm = self._norm_of(client)
                    progress.best_norms[client] = {name: value.clone() for name, value in norm.items()}

    def _average_norms(self, progress: Progress, visits: Sequence[Visit]) -> None:
        """There is no global BatchNorm: the mean of this round's is only for evaluating the global model."""
        norms = [replace(visit.update, model=visit.own_norm, extra={}) for visit in visits]
        if together := self._together(progress.server.model, norms):
            server = progress.server
            progress.server = replace(server, model={**server.model, **average(together)})

    # -- evaluation --------------------------------------------------------------------------------

    def _evaluate(self, progress: Progress) -> Record:
        return self.scorer.evaluate(progress)

    def right_by_global(self, model: State, client: int) -> Tensor:
        """Right answers [C] of the global model on a client's own test set, as the client sees it."""
        samples = self.federation.test[client]
        predicted = self.scorer.by_global(self._as_seen_by(client, model), samples)
        return self.scorer.right(predicted, samples)

    def _angles(self, progress: Progress, selected: Sequence[int], classifiers: Sequence[Tensor]) -> Record:
        present = self._present(selected)
        record: Record = {}
        if classifiers:
            record |= mean_angles("clients", torch.stack(list(classifiers)), present)
        if self.algorithm.GA_of == "global":  # else the server's classifier is nobody's: it was never trained
            record |= mean_angles("server", self._classifier(progress.global_model, {}), present)
        return record

    def _present(self, clients: Sequence[int]) -> Tensor:
        """Which classes these clients have, [K, C]; all clients, where their data is pooled."""
        counts = self.federation.train_counts
        return (counts if self.algorithm.pooled else counts[list(clients)]) > 0

    def _classifier(self, model: State, vectors: State) -> Tensor:
        """The classifier vectors, on the CPU; nothing else of the model is copied there."""
        return self.algorithm.classifier(model, on_device(vectors, self.device)).cpu()

    def close(self) -> None:
        """End the engine's processes."""
        self.engine.close()

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, progress: Progress) -> Record:
        """What is measured once, after the last round: fine-tuned personal models."""
        name = self.algorithm.finetuned_as
        if name is None:
            return {}

        def measured(round: int, model: State, norms: Mapping[int, State]) -> Record:
            right, total = self.finetuned(model, round, range(self.federation.clients), norms)
            by_client = client_accuracies(right, total)
            return mean_accuracy(name, right, total) | {"round": round, "by_client": by_client}

        best = measured(progress.best_round, progress.best_model, progress.best_norms)
        if progress.round == progress.best_round:
            return {"best": best, "last": best}
        return {"best": best, "last": measured(progress.round, progress.global_model, {})}

    def finetuned(
        self, model: State, round: int, clients: Sequence[int], norms: Mapping[int, State]
    ) -> tuple[Tensor, Tensor]:
        """The global model fine-tuned on each of these clients: right answers [N, C] on the client's own test
        set, and the number of test samples, [N, C]."""
        right = torch.zeros_like(self.federation.test_counts)
        for start in range(0, len(clients), FINETUNED_AT_ONCE):  # so that not all models are held at once
            outcomes = self.finetune(model, round, clients[start : start + FINETUNED_AT_ONCE], norms)
            questions = [
                Question(outcome.model, self.federation.test[outcome.client]) for outcome in outcomes
            ]
            answers = self.engine.answers(PLAIN.predict_personal, questions)
            for outcome, question, answer in zip(outcomes, questions, answers, strict=True):
                right[outcome.client] = self.scorer.right(answer, question.samples)
        return right, self.federation.test_counts

    def finetune(
        self, model: State, round: int, clients: Sequence[int], norms: Mapping[int, State]
    ) -> list[Outcome]:
        """Fine-tune the global model on each of these clients: plain cross-entropy, all parameters,
        `finetune_epochs` epochs at the run's learning rate. Where BatchNorm does not travel a client begins
        with its own, from `norms` or else its last."""
        e = self.experiment
        plan = Plan(PLAIN.loss, (Phase(e.finetune_epochs),), e.lr, e.seed, "finetune", round)
        seen = {k: self._as_seen_by(k, model) | norms.get(k, {}) for k in clients}
        jobs = [Job(k, self.federation.train[k], start) for k, start in seen.items()]
        return list(self.engine.train(plan, jobs))


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return sum(parts, torch.zeros(1, dtype=torch.float64))
