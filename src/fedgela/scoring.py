"""Scores the global model and the local ones, each on the test sets that its figures are defined on."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from fedgela.algorithms import FedAvg
from fedgela.data import Federation
from fedgela.evaluation import Record, accuracy, mean_accuracy
from fedgela.models import Net, State
from fedgela.rounds import Progress
from fedgela.training import Engine, Job, Outcome, Question
from fedgela.training.interface import Predict


class Scorer:
    """Asks an engine what models predict, and counts right answers by class."""

    def __init__(self, algorithm: FedAvg, federation: Federation, engine: Engine, own_norm: State) -> None:
        """`own_norm` is the initial BatchNorm of every client if BatchNorm does not travel, else empty."""
        self.algorithm = algorithm
        self.own_norm = own_norm
        self.federation = federation
        self.engine = engine
        self.labels = federation.data.y_test.cpu()
        self.union = torch.arange(len(self.labels))  # of all clients' test sets

    @property
    def needs_union(self) -> bool:
        """Whether local models are also scored on the union of the test sets."""
        return self.algorithm.locals_as is not None

    def right(self, predicted: Tensor, samples: Tensor) -> Tensor:
        """How many of the samples of each class were predicted rightly, [C]."""
        labels = self.labels[samples]
        return torch.bincount(labels[predicted == labels], minlength=self.federation.data.classes)

    def by_global(self, model: State, samples: Tensor) -> Tensor:
        """The classes that the global model predicts."""
        return self._answer(partial(_global_logits, self.algorithm), Question(model, samples))

    def by_locals(
        self, outcomes: Sequence[tuple[Job, Outcome]], extra: State
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Right answers [C] of each local model on its client's own test set, and on the union if needed."""
        own = [self.federation.test[job.client] for job, _ in outcomes]
        asked = [self.union] * len(own) if self.needs_union else own
        questions = [
            Question(outcome.model, samples, job.vectors | extra)
            for (job, outcome), samples in zip(outcomes, asked, strict=True)
        ]
        answers = self.engine.answers(self.algorithm.predict_personal, questions)
        found: list[tuple[Tensor, Tensor | None]] = []
        for answer, mine in zip(answers, own, strict=True):
            if self.needs_union:  # of which a client's own test set is a part
                found.append((self.right(answer[mine], mine), self.right(answer, self.union)))
            else:
                found.append((self.right(answer, mine), None))
        return found

    def _answer(self, predict: Predict, question: Question) -> Tensor:
        return self.engine.answers(predict, [question])[0]

    # -- a round's figures -------------------------------------------------------------------------

    def evaluate(self, progress: Progress) -> Record:
        """GA, PA and related figures after a round; the scores of new clients are kept in `progress`."""
        algorithm, totals = self.algorithm, self.federation.test_counts
        union_totals = totals.sum(dim=0)
        record: Record = {}
        if algorithm.GA_of == "global" or algorithm.PA_of == "global":
            predicted = self.by_global(progress.global_model, self.union)
            record |= accuracy("GA", self.right(predicted, self.union), union_totals)
            if algorithm.PA_of == "global":
                record |= mean_accuracy("PA", self._right_by_client(predicted), totals)
        if algorithm.locals_as is not None:
            self._score_newcomers_on_union(progress)
            on_union = progress.right_on_union
            record |= mean_accuracy(algorithm.locals_as, on_union, union_totals.expand_as(totals))
        if not algorithm.pooled:
            self._score_newcomers(progress)
            record |= mean_accuracy("local_accuracy", progress.right, totals)
            if algorithm.PA_of == "local":
                record |= mean_accuracy("PA", progress.right, totals)
        return record

    def _right_by_client(self, predicted: Tensor) -> Tensor:
        """Right answers on the union of the test sets, by client and class, [N, C]."""
        N, C = self.federation.test_counts.shape
        hit = predicted == self.labels
        cell = self.federation.test.owner * C + self.labels
        return torch.bincount(cell[hit], minlength=N * C).view(N, C)

    def _score_newcomers(self, progress: Progress) -> None:
        """Score the clients that have not trained yet. Their personal model is the current global one, where
        whatever does not travel (a head, local BatchNorm) is as it was initially."""
        new = progress.visited == 0
        samples = new[self.federation.test.owner].nonzero().flatten()
        if len(samples) == 0:
            return
        # all of them at once: one row of client vectors for each sample
        owner = self.federation.test.owner[samples]
        extra = progress.server.extra
        vectors = self.algorithm.client_vectors(self.federation.train_counts, extra)
        rows = {name: value[owner] for name, value in vectors.items()}
        question = Question(progress.server.model | self.own_norm, samples, extra, rows)
        answers = torch.full_like(self.labels, -1)
        answers[samples] = self._answer(self.algorithm.predict_personal, question)
        progress.right[new] = self._right_by_client(answers)[new]

    def _score_newcomers_on_union(self, progress: Progress) -> None:
        server, alike = progress.server, {}
        for k in (progress.visited == 0).nonzero().flatten().tolist():
            vectors = self.algorithm.client_vectors(self.federation.train_counts[k], server.extra)
            key = tuple((name, tuple(value.flatten().tolist())) for name, value in vectors.items())
            if key not in alike:  # with most methods newcomers have the same vectors, and the same answers
                question = Question(server.model | self.own_norm, self.union, vectors | server.extra)
                answer = self._answer(self.algorithm.predict_personal, question)
                alike[key] = self.right(answer, self.union)
            progress.right_on_union[k] = alike[key]


def _global_logits(algorithm: FedAvg, net: Net, x: Tensor, client: State) -> Tensor:
    return algorithm.predict_global(net, x)
