"""What a user should know before a run begins: what looks like a mistake in the data or in who holds it, and
what was asked for and has no effect."""

from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.errors import printable, some_of
from fedgela.models.hub import is_hub_model

NAMED = 10  # classes or features in a note


def noted(asked: Experiment, partition: str, federation: Federation) -> list[str]:
    """Notes of an inspection and of a run: what looks like a mistake in the data, settings without effect."""
    smallest = int(federation.train_counts.sum(dim=1).min())
    lines = list(federation.data.notes)
    if (asked.min_samples or 0) > smallest and not partition.startswith(("dirichlet", "iid")):
        lines.append(
            f"min_samples = {asked.min_samples} does nothing: it is for dirichlet, and {partition} leaves a "
            f"client with {smallest}"
        )
    if constant := federation.data.constant:
        lines.append(
            "features without effect, since they are the same in all training samples as far as float32 "
            f"tells: {some_of([printable(name) for name in constant], NAMED)}"
        )
    if in_vain := asked.algorithm.in_vain(federation.data.classes):
        lines.append(in_vain)
    groups, in_both = federation.data.groups
    if in_both:
        lines.append(
            f"{in_both:,} of {groups:,} groups have samples both in training and in test: on new groups "
            "accuracies may be lower"
        )
    return lines


def worth_knowing(asked: Experiment, resolved: Experiment, federation: Federation) -> list[str]:
    """Notes that a run begins with: what was asked for and has no effect with these clients or this model,
    and what looks like a mistake in the data."""
    model, partition = resolved.model, resolved.partition
    assert model is not None and partition is not None, "a resolved experiment has both"
    largest = int(federation.train_counts.sum(dim=1).max())
    lines = noted(asked, partition, federation)
    if not asked.pretrained and not is_hub_model(model):
        lines.append(f"pretrained = false does nothing: it is for models of the hub, and {model} is none")
    if resolved.server_average > 0 and resolved.algorithm.GA_of != "global":
        lines.append(f"server_average does nothing: {resolved.algorithm.title} has no global model")
    untested = int((federation.test_counts.sum(dim=1) == 0).sum())
    if untested:
        lines.append(f"{untested} of {federation.clients} clients have no test samples, and no part in PA")
    lines += classes_worth_knowing(federation)
    if largest < resolved.batch_size:
        lines.append(
            f"no client has a batch of {resolved.batch_size}, the largest has {largest}: each trains on one "
            "batch of all it has, one step an epoch"
        )
    return lines


def classes_worth_knowing(federation: Federation) -> list[str]:
    """Notes of classes without any sample, tested but not trained on, or trained on but not tested."""
    lines = []
    if federation.nowhere:
        names, classes = _named(federation, federation.nowhere), federation.data.classes
        if federation.data.class_names:
            lines.append(f"classes without any sample: {names}")
        else:
            highest = f"is the highest, {classes - 1}, a mistake?"
            lines.append(
                f"labels count from 0, so that there are {classes} classes, of which no sample has the label "
                f"{names}: {'do yours begin at 1?' if federation.nowhere == [0] else highest}"
            )
    if federation.only_in_test:
        names = _named(federation, federation.only_in_test)
        lines.append(f"classes that are tested, but that nobody has training samples of: {names}")
    if federation.never_tested:
        names = _named(federation, federation.never_tested)
        lines.append(f"classes without a test sample are never measured, neither by GA nor by PA: {names}")
    return lines


def _named(federation: Federation, classes: list[int]) -> str:
    names = federation.data.printable_classes
    return some_of([names[c] for c in classes], NAMED)
