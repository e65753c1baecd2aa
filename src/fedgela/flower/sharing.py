"""What a site tells of its classes where it opts in (`federation site --share-classes`): how many samples of
each it has, and its figures by class. Of a site that did not, none of this is made."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.data.dataset import Dataset
from fedgela.evaluation import Record, accuracy, train_loss
from fedgela.models import State
from fedgela.rounds import Visit
from fedgela.scoring import Scorer
from fedgela.server import Server

GROUP = "by_class"  # of a message's tensors
_BY_CLASS = {"join": ("train", "test"), "train": ("loss_sum", "loss_count", "right"), "score": ("right",)}
CONFUSION = "confusion"  # with the answers of the last round


def shapes(task: str, C: int) -> dict[str, tuple[int, ...]]:
    """The tensors that a message of this task may hold in the group."""
    found: dict[str, tuple[int, ...]] = dict.fromkeys(_BY_CLASS.get(task, ()), (C,))
    return found | {CONFUSION: (C, C)} if task in ("train", "score") else found


def counts_of(data: Dataset) -> State:
    parts = {"train": data.y_train, "test": data.y_test}
    return {name: torch.bincount(y, minlength=data.classes) for name, y in parts.items()}


class SiteScorer(Scorer):
    """Also keeps the confusion of the answers that it counted last."""

    confusion: Tensor  # [C, C]: true class, predicted class

    def right(self, predicted: Tensor, samples: Tensor) -> Tensor:
        C = self.federation.data.classes
        cell = self.labels[samples] * C + predicted.cpu()
        self.confusion = torch.bincount(cell, minlength=C * C).view(C, C)
        return super().right(predicted, samples)


class SiteServer(Server):
    """A site's own: a federation of one, which can share."""

    def __init__(self, experiment: Experiment, federation: Federation, note: Callable[[str], None]) -> None:
        super().__init__(experiment, federation, note=note)
        self.scorer: SiteScorer = SiteScorer(self.algorithm, self.federation, self.engine, self.own_norm)

    def _scores_locals(self, round: int) -> bool:
        return True  # the site may be away in the next round that is evaluated

    def shared_of_visit(self, visit: Visit, round: int) -> State:
        """The visit's figures by class, in rounds that are evaluated, as a local run has them."""
        if not self._evaluates(round) or visit.right is None:
            return {}
        shared = {"loss_sum": visit.loss_sum, "loss_count": visit.loss_count, "right": visit.right}
        return shared | self._confusion(round)

    def shared_of_score(self, right: Tensor, round: int) -> State:
        return {"right": right} | self._confusion(round)

    def _confusion(self, round: int) -> State:
        """Of the models that the run ends with only."""
        return {CONFUSION: self.scorer.confusion} if round == self.experiment.rounds else {}


# -- on the server ---------------------------------------------------------------------------------


def problem(task: str, shared: State, C: int, tested: Tensor | None) -> str | None:
    """Why what a site shares cannot be used, if it cannot; `tested` [C] is what it told when it joined."""
    allowed = shapes(task, C)
    for name, value in shared.items():
        if allowed.get(name) != tuple(value.shape):
            return f"sent {GROUP}/{name} as {list(value.shape)}, which nobody asked for"
        counts = not name.startswith("loss_")
        if not value.isfinite().all() or (value < 0).any() or (counts and value.dtype != torch.int64):
            return f"sent {GROUP}/{name} with values that are no counts and no sums"
    if tested is not None:
        confusion = shared.get(CONFUSION, tested.diag())
        # each by itself, too: a sum of int64 wraps around
        more = (shared.get("right", tested) > tested).any() or (confusion > tested[:, None]).any()
        if more or not torch.equal(confusion.sum(dim=1), tested):
            return f"sent {GROUP} of more test samples than it has of a class"
    return None


def figures_of_visit(shared: State, tested: Tensor) -> Record:
    """Of a site's local model: accuracy by class [C], its training loss, and at the end the confusion."""
    if "right" not in shared:
        return {}
    record = {"local_accuracy": accuracy("local", shared["right"], tested)["local_by_class"]}
    if "loss_sum" in shared and "loss_count" in shared:
        by_class = train_loss(shared["loss_sum"], shared["loss_count"])
        record["train_loss"] = by_class["train_loss_by_class"]
    return record | ({"local_confusion": shared[CONFUSION].tolist()} if CONFUSION in shared else {})


def figures_of_score(shared: State, tested: Tensor) -> Record:
    """Of the global model on a site's own test samples."""
    if "right" not in shared:
        return {}
    record = {"GA": accuracy("GA", shared["right"], tested)["GA_by_class"]}
    return record | ({"GA_confusion": shared[CONFUSION].tolist()} if CONFUSION in shared else {})
