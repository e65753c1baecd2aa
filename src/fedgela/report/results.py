"""The report's first two sections: the table of results, and what was run."""

from collections.abc import Mapping

from fedgela.grids import Cell, Grid
from fedgela.html_page import advice, described
from fedgela.over_seeds import mean_std
from fedgela.report.context import Context, Part, Section
from fedgela.report.entries import Entry, Setting
from fedgela.report.in_short import in_short
from fedgela.report.paper_numbers import paper_number
from fedgela.tables import COLUMNS, DIVERGED, METRICS, RANKED


def what_was_run(c: Context) -> Section:
    e, entries = c.setting.experiment, c.setting.entries
    seeds = sorted({seed for entry in entries for seed in entry.runs})
    versions = [(run.result or {}).get("versions") for entry in entries for run in entry.runs.values()]
    software = dict.fromkeys(
        ", ".join(f"{name} {v}" for name, v in held.items()) for held in versions if held
    )
    sites = c.setting.sites
    how = "as it comes" if e.partition == "natural" else f"split by {e.partition}"
    data = f"{e.dataset}, {how}, {e.clients} clients"
    measured = "validation data" if e.validation else "the clients' test sets"
    if sites is not None:
        data = f"stays on {len(sites.names)} sites: {', '.join(sites.names)}"
        measured = f"GA: {sites.GA_on}; PA: each site's own test samples"
    pairs = [
        ("data", data),
        (
            "a round",
            f"{e.sample} clients; local epochs {_each(c, 'epochs')}; batch size {_each(c, 'batch_size')}",
        ),
        ("rounds", _each(c, "rounds")),
        ("model", f"{e.model}, projection to {e.projection}"),
        ("methods", ", ".join(entry.label for entry in entries)),
        ("seeds", ", ".join(map(str, seeds))),
        ("measured on", measured),
    ]
    if any(entry.experiment.aggregation != "mean" for entry in entries):
        pairs.append(("updates aggregated by", _each(c, "aggregation")))
    if any(entry.experiment.server_average for entry in entries):
        told = f"the average over rounds, with weight {_each(c, 'server_average')} for the earlier ones"
        pairs.append(("the global model", told))
    if unmeasured := _never_measured(c):
        pairs.append(("never measured", f"{', '.join(unmeasured)}: there is no test sample of these classes"))
    if unlearned := _never_trained_on(c):
        told = f"{', '.join(unlearned)}: only test sets have samples of these classes, which count in GA"
        pairs.append(("never trained on", told))
    shared = {entry.label: (entry.first.result or {}).get("shares") for entry in entries}
    if any(shared.values()):
        told = "; ".join(f"{label}: {what}" for label, what in shared.items() if what)
        pairs.append(("shared beyond weights", told))
    if software:
        pairs.append(("software", " or ".join(software)))
    return Section("What was run", [described(pairs), *_unfinished(c.setting)])


def _never_measured(c: Context) -> list[str]:
    """Classes that no entry's GA by class has a figure of; none where no entry has GA by class."""
    by_class = [entry.GA_by_class() for entry in c.setting.entries]
    C = max(map(len, by_class))
    unknown = [cls for cls in range(C) if all(GA[cls] is None for GA in by_class if len(GA) == C)]
    return [c.class_names(C)[cls] for cls in unknown] if len(unknown) < C else []


def _never_trained_on(c: Context) -> list[str]:
    """Classes that only test sets have, so that nobody can have learned them; none where the data is not
    here to tell."""
    if c.federation is None or c.setting.sites is not None:
        return []
    names = c.class_names(c.federation.data.classes)
    return [names[cls] for cls in c.federation.only_in_test]


def _each(c: Context, key: str) -> str:
    values = dict.fromkeys(str(getattr(entry.experiment, key)) for entry in c.setting.entries)
    return " or ".join(values)


def _unfinished(setting: Setting) -> list[Part]:
    lines = [
        f"{entry.label}, seed {seed}: {run.rounds_done} of {run.experiment.rounds} rounds"
        for entry in setting.entries
        for seed, run in entry.runs.items()
        if run.result is None
    ]
    return [advice("Not finished; what is there is shown:", lines)] if lines else []


def results(c: Context) -> Section:
    """The table, with the paper's numbers where it has them."""
    setting, entries = c.setting, c.setting.entries
    paper = {(entry.label, metric): paper_number(entry, metric) for entry in entries for metric in METRICS}
    cited = {metric for (_, metric), found in paper.items() if found}
    base = setting.fedavg if len(entries) > 1 else None
    head = ["method"]
    for metric, when in COLUMNS:
        head.append(f"{metric} {when}")
        if when == "best" and metric in cited:
            head.append(f"paper's {metric}")
    head += [f"Δ {metric} last" for metric in METRICS] if base else []
    balanced = [metric for metric in METRICS if any(_differs(entry, metric) for entry in entries)]
    head += [f"{metric} balanced, last" for metric in balanced]
    ranks = {column: setting.ranks(*column) for column in COLUMNS}
    rows: list[list[Cell]] = []
    for entry in setting.entries:
        row: list[Cell] = [entry.label + ("" if entry.finished else " (unfinished)") + _diverged(entry)]
        for metric, when in COLUMNS:
            text = mean_std(entry.summary(metric, when))
            rank = ranks[metric, when].get(entry.label)
            row.append((text, ("best", "second")[rank]) if rank in (0, 1) else text)
            if when == "best" and metric in cited:
                found = paper[entry.label, metric]
                row.append((found[0].text, "paper") if found else "")
        if base is not None:
            differences = [entry.difference(base, metric, "last") for metric in METRICS]
            row += ["" if entry is base else mean_std(one, sign="+") for one in differences]
        row += [mean_std(entry.summary(f"{metric}_balanced", "last")) for metric in balanced]
        rows.append(row)
    return Section("Results", [in_short(setting), Grid(head, rows, _legend(c, paper, base), sortable=True)])


def _differs(entry: Entry, metric: str) -> bool:
    """Whether the mean over classes is a point or more from the one over samples, on any seed."""
    plain, balanced = (entry.values(name, "last") for name in (metric, f"{metric}_balanced"))
    return any(abs(balanced[seed] - plain[seed]) >= 1 for seed in plain.keys() & balanced.keys())


def _diverged(entry: Entry) -> str:
    return " †" if any(run.diverged_round for run in entry.runs.values()) else ""


def _legend(
    c: Context, paper: Mapping[tuple[str, str], tuple[object, str] | None], base: Entry | None
) -> str:
    """What the numbers, marks and columns of this table mean; what it does not have is left out."""
    setting, entries = c.setting, c.setting.entries
    ranked = bool(setting.ranks("GA", "last"))
    several_seeds = any(len(entry.runs) > 1 for entry in entries)
    parts = ["Accuracy in percent" + (", mean ± standard deviation over seeds" if several_seeds else "")]
    if ranked:
        parts.append("bold: best, underlined: second best (bounds and unfinished runs are not ranked)")
    parts += [
        "best: the maximum over rounds (fine-tuned PA: at the round of the best GA), chosen on the data it "
        "is measured on",
    ]
    if base is not None:
        parts.append(f"Δ: difference to {base.label}, paired by seed")
    if ranked and len({frozenset(entry.runs) for entry in entries}) > 1:
        parts.append(RANKED)
    if any(_differs(entry, metric) for entry in entries for metric in METRICS):
        parts.append("balanced: the mean over classes instead of samples")
    if tables := sorted({found[1] for found in paper.values() if found}):
        rounds = " or ".join(map(str, sorted({entry.experiment.rounds for entry in entries})))
        parts.append(
            f"the paper's: {', '.join(tables)}, whose hyper-parameters it does not all tell; "
            f"here {rounds} rounds"
        )
    if any(_diverged(entry) for entry in entries):
        parts.append(DIVERGED)
    return "; ".join(parts)
