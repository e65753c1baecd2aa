"""An inspection in words and tables."""

import textwrap
from collections.abc import Sequence

from fedgela.errors import printable
from fedgela.grids import Grid
from fedgela.inspection import Inspection
from fedgela.inspection_report.tables import clients_grid, counts_grid

SOURCE = "a rule of thumb from the figures of docs/findings.md"


def in_short(found: Inspection) -> str:
    e = found.experiment
    clients = "1 client" if found.clients == 1 else f"{found.clients:,} clients"
    return (
        f"{found.classes} classes, {clients} by {e.partition} (seed {e.partition_seed}), "
        f"{found.samples.sum():,} training and {found.test_samples.sum():,} test samples"
        + (f" ({e.validation:g} held out to stand in for the test sets)" if e.validation else "")
    )


def findings(found: Inspection) -> list[tuple[str, str]]:
    """The federation as a whole, as pairs of a name and what was found."""
    d = found.duplicates
    cells = f"{found.missing_cells:.1%} of {found.clients * found.classes:,} (client, class) cells"
    if found.disjoint_cells != found.missing_cells:
        cells += f"; {found.disjoint_cells:.1%} among training clients and classes that somebody has"
    small = int(found.too_small.sum())
    same = f", {d.test_in_train_of_same_client:,} of them by the same client" if d.test_in_train else ""
    groups, in_both = found.data.groups
    columns = ", ".join(map(printable, found.data.feature_names))
    looked_for = [
        (
            "too small for a batch",
            small,
            f"{small:,} of {found.clients:,} clients (batch_size {found.experiment.batch_size})",
        ),
        *(
            (name, len(classes), _classes(found, classes))
            for name, classes in (
                ("only in a test set", found.federation.only_in_test),
                ("never tested", found.federation.never_tested),
                ("nowhere", found.federation.nowhere),
            )
        ),
        (
            "test samples also trained on",
            d.test_in_train,
            f"{d.test_in_train:,}{same}{_examples('test', d.examples_test_in_train)}",
        ),
        (
            "samples of several clients",
            d.across_clients,
            f"{d.across_clients:,}{_examples('train', d.examples_across_clients)}",
        ),
        (
            "samples twice on a client",
            d.within_client,
            f"{d.within_client:,}{_examples('train', d.examples_within_client)}",
        ),
        ("equal samples with other labels", d.conflicting, f"{d.conflicting:,}"),
    ]
    none = [_IN_WORDS.get(name, name) for name, count, _ in looked_for if not count]
    return [
        *([("features", columns)] if columns else []),
        *([("groups", f"{groups:,}, {in_both:,} of them both in training and in test")] if groups else []),
        ("missing", cells),
        (
            "class imbalance",
            f"{found.class_imbalance:,.1f}, largest over smallest class of all training samples",
        ),
        *((name, told) for name, count, told in looked_for if count),
        *([("looked for, none found", ", ".join(none))] if none else []),
    ]


# of lines that are about clients or classes, where only their names are listed
_IN_WORDS = {
    "too small for a batch": "clients too small for a batch",
    "only in a test set": "classes only in a test set",
    "never tested": "classes never tested",
    "nowhere": "classes without samples",
}


def _classes(found: Inspection, classes: list[int]) -> str:
    shown = ", ".join(found.class_names[c] for c in classes[:10])
    return f"{len(classes)}: {shown}" + (", ..." if len(classes) > 10 else "")


def _examples(part: str, pairs: Sequence[tuple[int, int]]) -> str:
    if not pairs:
        return ""
    shown = ", ".join(f"{part} {i} = train {j}" for i, j in pairs[:3])
    return f" ({shown}, ...)" if len(pairs) > 3 else f" ({shown})"


def verdict(found: Inspection) -> str:
    advice = found.advice
    settings = ", ".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value:g}"
        for key, value in advice.settings.items()
    )
    helps = "may help" if advice.verdict == "perhaps" else f"is {advice.verdict} to help"
    fit = f" with {settings}" if settings else ""
    return f"FedGELA {helps}{fit}: {advice.reason} ({SOURCE})"


def blocks(found: Inspection, width: int = 100) -> list[str | Grid]:
    """The report in order: lines and tables. Findings are broken at `width`, below where they begin."""
    pairs = findings(found)
    named = max(len(name) for name, _ in pairs) + 2
    room = max(width - named, 30)
    lines = "\n".join(
        name.ljust(named) + ("\n" + " " * named).join(textwrap.wrap(value, room)) for name, value in pairs
    )
    notes = "\n".join(f"note: {line}" for line in found.advice.warnings)
    parts: list[str | Grid | None] = [
        f"{found.name}: {in_short(found)}",
        clients_grid(found),
        counts_grid(found),
        lines,
        verdict(found),
        notes,
    ]
    return [part for part in parts if part]


def to_text(found: Inspection) -> str:
    return "\n\n".join(b if isinstance(b, str) else b.to_text() for b in blocks(found)) + "\n"
