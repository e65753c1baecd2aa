"""What only a run on sites has: who took part, how long, what was sent, what went wrong, privacy spent."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from fedgela.evaluation import Record
from fedgela.flower.terms import GA_OF_LOCALS
from fedgela.grids import Cell, Grid
from fedgela.heat_maps import HeatMap
from fedgela.html_page import details, escape, paragraph
from fedgela.progress import duration
from fedgela.report.context import Context, Part, Section, file_name
from fedgela.report.costs import size
from fedgela.report.curves import curves
from fedgela.report.drawing import Picture
from fedgela.report.entries import Curve, Entry, personal_accuracies
from fedgela.report.figures import matrix
from fedgela.saved.runs import Run
from fedgela.saved.sites import Sites, joined


def by_site(c: Context) -> Section:
    section = Section("Sites")
    for entry in c.setting.entries:
        run = entry.first
        if run.sites is None:
            continue
        if len(c.setting.entries) > 1:
            section.parts.append(f"<h4>{escape(entry.label)}</h4>\n")
        section.parts += _of_entry(c, entry, run, run.sites)
    return section


def _of_entry(c: Context, entry: Entry, run: Run, sites: Sites) -> list[Part]:
    parts: list[Part] = [_sites_table(run, sites), _messages(run.records)]
    if sites.terms.secure_aggregation:
        parts.append(_masked(run.records))
    spent = entry.curve("epsilon")
    if spent.rounds:
        parts.append(_privacy(sites, spent))
    if run.experiment.algorithm.GA_of == "locals":
        parts.append(paragraph(f"{GA_OF_LOCALS}."))
    parts.append(_faults(run.records))
    for key, title, unit in (
        ("site_seconds", "Seconds of training by site and round", "seconds"),
        ("local_accuracy_by_site", "Accuracy of each site's own model by round, %", "%"),
    ):
        picture = _by_round(c, entry, run.records, sites.names, key, title, unit)
        parts += [picture] if picture else []
    if spent.rounds:
        name, title = f"epsilon-{file_name(entry.label)}", "Epsilon spent by round"
        parts.append(curves(name, title, "epsilon", {entry.label: spent}, c.styles))
    parts.append(details("Every round: messages, time, faults", _rounds_table(run.records).to_html()))
    return parts


def _sites_table(run: Run, sites: Sites) -> Grid:
    told, personal = joined(run.records), _personal(run, sites)
    rows = []
    for name in sites.names:
        seconds = [s for r in run.records if (s := r.get("site_seconds", {}).get(name)) is not None]
        faults = sum(name in r.get("faults", {}) for r in run.records)
        own = told.get(name)
        rows.append(
            {
                "site": name,
                "training samples": f"{own['samples']:,}" if own else "-",
                "test samples": f"{own['tested']:,}" if own else "-",
                "rounds trained": f"{len(seconds)} of {len(run.records)}",
                "a round": duration(statistics.median(seconds)) if seconds else "-",
                "training in all": duration(sum(seconds)) if seconds else "-",
                "PA last": f"{personal[name]:.2f}" if name in personal else "-",
                "rounds with a fault": str(faults) if faults else "none",
                "classes": "shared" if own and "train_by_class" in own else "not shared",
            }
        )
    note = (
        "a round: median of the site's own training time, without what messages take; classes: whether the "
        "site opted in to share its class counts and figures by class"
    )
    return Grid(list(rows[0]), [list(row.values()) for row in rows], note)


def _personal(run: Run, sites: Sites) -> dict[str, float]:
    """PA of every site that has one, at the end or so far."""
    values = personal_accuracies(run)
    if values:
        return {name: v for name, v in zip(sites.names, values, strict=True) if v is not None}
    if run.experiment.algorithm.PA_of != "local":
        return {}  # known after fine-tuning only
    held = (r["local_accuracy_by_site"] for r in reversed(run.records) if "local_accuracy_by_site" in r)
    return dict(next(held, {}))


def _messages(records: Sequence[Record]) -> Part:
    up, down = ([r[key] for r in records if key in r] for key in ("bytes_up", "bytes_down"))
    if not up or not down:
        return ""
    one = f"{size(round(statistics.median(up)))} up and {size(round(statistics.median(down)))} down"
    return paragraph(
        f"Messages: {one} a round, the median; {size(sum(up))} up and {size(sum(down))} down in all."
    )


def _privacy(sites: Sites, spent: Curve) -> Part:
    terms = sites.terms
    return paragraph(
        f"Differential privacy: epsilon {spent.mean[-1]:.3g} at delta {terms.dp_delta:g} after round "
        f"{spent.rounds[-1]} (noise {terms.dp_noise:g}, changes cut to length {terms.dp_clip:g}), for one "
        "site's taking part, towards everybody who sees global models. "
        + ("" if terms.secure_aggregation else "The server itself sees every update.")
    )


def _masked(records: Sequence[Record]) -> Part:
    lost = [str(record["round"]) for record in records if "lost" in record]
    told = f" Rounds whose updates are lost: {', '.join(lost)}." if lost else ""
    return paragraph(
        f"Secure aggregation: the server has seen the sum of the updates, and no single one.{told}"
    )


def _faults(records: Sequence[Record]) -> Part:
    """The same fault of the same site in rounds that follow each other is one line."""
    spans: list[tuple[int, int, str, str]] = []
    for record in records:
        now = record["round"]
        for site, text in record.get("faults", {}).items():
            same = next((i for i, s in enumerate(spans) if s[1:] == (now - 1, site, text)), None)
            if same is None:
                spans.append((now, now, site, text))
            else:
                spans[same] = (spans[same][0], now, site, text)
    if not spans:
        return paragraph("No faults: every site that was asked answered soundly in every round.")
    rows: list[list[Cell]] = [
        [str(a) if a == b else f"{a} to {b}", site, (text, "words")] for a, b, site, text in spans
    ]
    note = "the round went on without the site, unless the fault says otherwise"
    return Grid(["rounds", "site", "fault"], rows, note, title="Faults")


def _by_round(
    c: Context, entry: Entry, records: Sequence[Record], names: Sequence[str], key: str, title: str, unit: str
) -> Picture | None:
    held: list[tuple[int, Mapping[str, float]]] = [(r["round"], r[key]) for r in records if r.get(key)]
    if not held:
        return None
    values = np.array([[found.get(name, np.nan) for _, found in held] for name in names], dtype=np.float64)
    rounds = [str(number) for number, _ in held]
    rows = [[r, *("" if np.isnan(v) else f"{v:.2f}" for v in values[:, i])] for i, r in enumerate(rounds)]
    known = values[~np.isnan(values)]
    text = f"A row a site, a column a round: from {known.min():.4g} to {known.max():.4g}."
    return matrix(
        f"{key.replace('_', '-')}-{file_name(entry.label)}",
        title,
        text,
        HeatMap(
            values,
            list(names),
            rounds,
            "",
            "round",
            scale=(0, 100) if unit == "%" else (0, float(known.max())),
            number="{:.0f}" if unit == "%" or known.max() >= 100 else "{:.2g}",
            colour_label=unit,
        ),
        Grid(["round", *names], rows),
    )


def _rounds_table(records: Sequence[Record]) -> Grid:
    total = {key: sum(r.get(key, 0) for r in records) for key in ("bytes_up", "bytes_down", "seconds")}
    rows = [*map(_round_row, records), {"round": "all"} | _amounts(total)]
    head = list(dict.fromkeys(name for row in rows for name in row))
    note = "up and down: bytes of all messages between the server and its sites; seconds: of the whole round"
    return Grid(head, [[row.get(name, "") for name in head] for row in rows], note)


def _round_row(record: Record) -> dict[str, str]:
    trained = record.get("site_seconds", {})
    slowest = max(trained.items(), key=lambda item: item[1], default=None)
    return {
        "round": str(record["round"]),
        **_amounts(record),
        "sites trained": str(len(trained)),
        "slowest site": f"{slowest[0]}, {slowest[1]:.1f} s" if slowest else "",
        "faults": ", ".join(record.get("faults", {})),
    } | ({"epsilon": f"{record['epsilon']:.3g}"} if "epsilon" in record else {})


def _amounts(of: Mapping[str, float]) -> dict[str, str]:
    """Bytes up and down, and seconds, of a round or of all together."""
    up, down = (size(int(of.get(key, 0))) for key in ("bytes_up", "bytes_down"))
    return {"up": up, "down": down, "seconds": f"{of.get('seconds', 0.0):.1f}"}
