"""What a report says first: who leads, by how much, and on how many seeds."""

from fedgela.html_page import escape
from fedgela.over_seeds import BOUNDS, mean_std
from fedgela.report.entries import Entry, Setting

LISTED = 4  # entries that nothing ranks, as while they run


def in_short(setting: Setting) -> str:
    """A line each for GA and PA, with what they are; empty where nothing was measured."""
    whose_PA = "each client's own model on its own test samples, the mean over clients"
    asked = (("GA", f"generic accuracy: {setting.GA_of}"), ("PA", f"personal accuracy: {whose_PA}"))
    told = [(metric, what, _standing(setting, metric)) for metric, what in asked]
    lines = [
        f"<p><strong>{metric}</strong> <span>({escape(what)})</span><br>{standing}</p>"
        for metric, what, standing in told
        if standing
    ]
    if not lines:
        return ""
    # the order of two methods on one seed may be chance
    ranked = [e for e in setting.entries if e.label in setting.ranks("GA", "last")]
    if ranked and min(len(entry.runs) for entry in ranked) == 1:
        lines.append('<p class="note">One seed: on others the order may differ.</p>')
    return f'<div class="advice short" role="group" aria-label="In short">{"".join(lines)}</div>\n'


def _standing(setting: Setting, metric: str) -> str:
    """Who is best in the last round, how far ahead of the second and of FedAvg, as HTML; where nobody can be
    ranked, what there is."""
    ranks = setting.ranks(metric, "last")
    entries = {entry.label: entry for entry in setting.entries}
    first, second = ([entries[label] for label, rank in ranks.items() if rank == r] for r in (0, 1))
    if not first:
        known = [e for e in setting.entries if e.values(metric, "last") and e.method not in BOUNDS]
        return escape("; ".join(_figure(entry, metric) for entry in known[:LISTED]))
    names, value = (f"<strong>{escape(text)}</strong>" for text in (_names(first), _value(first[0], metric)))
    if not second:
        return f"{names} are level, with {value}." if len(first) > 1 else f"{names} {value}"
    behind = second[:1]
    fedavg = setting.fedavg
    if fedavg is not None and ranks.get(fedavg.label, 0) > 1:
        behind = [*behind, fedavg]
    ahead = " and ".join(_ahead(first[0], other, metric) for other in behind)
    return f"{names} lead{'' if len(first) > 1 else 's'} with {value}: {escape(ahead)}."


def _names(entries: list[Entry]) -> str:
    return " and ".join(entry.label for entry in entries)


def _value(entry: Entry, metric: str) -> str:
    return f"{mean_std(entry.summary(metric, 'last'))} %"


def _figure(entry: Entry, metric: str) -> str:
    """An entry's value where there is nothing to compare it with."""
    done = min(run.rounds_done for run in entry.runs.values())
    when = "" if entry.finished else f" so far, {done} of {entry.experiment.rounds} rounds"
    return f"{entry.label} {_value(entry, metric)}{when}"


def _ahead(best: Entry, other: Entry, metric: str) -> str:
    """By how many points, and on how many of the seeds that both have."""
    mine, theirs = best.values(metric, "last"), other.values(metric, "last")
    gaps = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
    points = mean_std(best.difference(other, metric, "last"))
    words = f"{points} points ahead of {other.label}"
    if len(gaps) < 2:
        return words
    won, n = sum(round(gap, 2) > 0 for gap in gaps), len(gaps)
    seeds = f"{won} of {n}" if won < n else "both" if n == 2 else f"all {n}"
    return f"{words} (on {seeds} seeds)"
