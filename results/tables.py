#!/usr/bin/env python3
"""Write the tables of docs/*.md from results/sweeps/*.json, between their markers. Nothing is typed by hand.

python results/tables.py            # rewrites the docs
"""

import inspect
import itertools
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# of the sweep over FedGELA's options: what is the same everywhere, and what runs over partitions and seeds
BASE = {"lr": "0.03", "algorithm.E_W": "3"}
FREE = ("dataset", "validation", "rounds", "epochs", "batch_size", "partition", "seed")
SEARCHED = ("lr", "algorithm.E_W", "algorithm.phi")


def rows_of(*names: str) -> list[dict]:
    return [
        row
        for name in names
        for row in json.loads((ROOT / f"results/sweeps/{name}.json").read_text())["rows"]
    ]


def over(seeds: list[float], digits: int = 1) -> str:
    """Mean and standard deviation of values on several seeds; of one seed, its value."""
    if len(seeds) == 1:
        return f"{seeds[0]:.{digits}f}"
    return f"{statistics.fmean(seeds):.{digits}f} ± {statistics.stdev(seeds):.{digits}f}"


def method_of(settings: dict[str, str]) -> str:
    return settings.get("algorithm") or settings.get("algorithm.name") or "fedgela"


def chosen(settings: dict[str, str]) -> str:
    return ", ".join(f"{k.removeprefix('algorithm.')} = {settings[k]}" for k in SEARCHED if k in settings)


def by_setting(rows: list[dict]) -> dict[tuple[str, str], list[dict]]:
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in rows:
        groups[method_of(row["settings"]), chosen(row["settings"])].append(row)
    return groups


def single_runs(name: str, partition: str) -> list[str]:
    rows = [row for row in rows_of(name) if row["settings"]["partition"] == partition]
    rounds = min(len(row["GA"]) for row in rows)
    model = rows[0]["settings"]["model"]
    lines = [
        f"CIFAR-10, {model}, `{partition}`, round {rounds}:",
        "",
        "| method | setting | GA | local accuracy |",
        "|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -row["GA"][rounds - 1]):
        settings, GA, PA = row["settings"], row["GA"][rounds - 1], row["PA"][rounds - 1]
        lines.append(f"| {method_of(settings)} | {chosen(settings)} | {GA:.1f} | {PA:.1f} |")
    return lines


def tuned(name: str) -> list[str]:
    """Of every method its default and the best of its trials, by the mean of GA and PA."""
    trials: dict[str, list[dict]] = defaultdict(list)
    for trial in json.loads((ROOT / f"results/sweeps/{name}.json").read_text())["trials"]:
        trials[trial["method"]].append(trial)
    lines = [
        "| method | trials | first trial | GA | PA | the best | GA | PA |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def cells(trial: dict) -> str:
        setting = ", ".join(
            f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"
            for key, value in trial["settings"].items()
        )
        return f"{setting} | {trial['GA']:.1f} | {trial['PA']:.1f}"

    best = {
        method: max(of_it, key=lambda trial: trial["GA"] + trial["PA"]) for method, of_it in trials.items()
    }
    for method in sorted(trials, key=lambda method: -best[method]["GA"] - best[method]["PA"]):
        first, of_it = trials[method][0], trials[method]
        lines.append(f"| {method} | {len(of_it)} | {cells(first)} | {cells(best[method])} |")
    return lines


def by_strength(name: str) -> list[str]:
    """FedGen's last round on validation data, by alpha = beta."""
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in rows_of(name):
        groups[row["settings"]["partition"], row["settings"]["alpha"]].append(row)
    lines = ["| digits, 10 rounds | alpha = beta | seeds | GA | PA |", "|---|---|---|---|---|"]
    for (partition, alpha), rows in groups.items():
        means = [statistics.fmean(row[metric] for row in rows) for metric in ("GA", "PA")]
        seeds = ", ".join(row["settings"]["seed"] for row in rows)
        lines.append(f"| `{partition}` | {alpha} | {seeds} | {means[0]:.1f} | {means[1]:.1f} |")
    return lines


def over_seeds(*names: str, top: int) -> list[str]:
    """The best settings of each method by mean GA at the last round; those with the most seeds first."""
    lines = ["| method | setting | seeds | GA last, mean ± std |", "|---|---|---|---|"]
    groups = by_setting(rows_of(*names))
    for method in ("fedavg", "fedge", "fedgela"):
        found = []
        for (name, setting), rows in groups.items():
            if name == method:
                last = [row["GA"][-1] for row in rows]
                found.append((len(last), statistics.fmean(last), statistics.stdev(last), setting))
        for seeds, mean, std, setting in sorted(found, reverse=True)[:top]:
            lines.append(f"| {method} | {setting} | {seeds} | {mean:.1f} ± {std:.1f} |")
    return lines


def options(name: str) -> list[str]:
    """One option changed at a time: mean GA and local accuracy at the last round, by partition."""
    groups: dict[str, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(name):
        settings = row["settings"]
        changed = {k: v for k, v in settings.items() if k not in BASE or BASE[k] != v}
        label = ", ".join(
            f"{k.removeprefix('algorithm.')} = {v}" for k, v in changed.items() if k not in FREE
        )
        groups[label or "the base"][settings["partition"]].append(row)
    parts = sorted({part for group in groups.values() for part in group})
    head = [f"{metric}, `{part}`" for part in parts for metric in ("GA", "local")]
    lines = ["| changed | " + " | ".join(head) + " |", "|---|" + "---|" * len(head)]
    for label, by_part in groups.items():
        cells = []
        for part in parts:
            for metric in ("GA", "PA"):
                last = [row[metric][-1] for row in by_part[part]]
                cells.append(over(last))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def keys() -> list[str]:
    """Every key of an experiment with its type and default."""
    from fedgela.config import Experiment

    lines = ["| key | default | what it is |", "|---|---|---|"]
    source = Path(inspect.getfile(Experiment)).read_text()
    for name, field in Experiment.model_fields.items():
        definition = re.search(rf"^    {name}: (?:.*\n(?!    \w+:|\n))*.*", source, re.MULTILINE)
        note = re.search(r"  # (.*)", definition[0]) if definition else None
        default = "fedgela" if name == "algorithm" else field.default
        value = default if isinstance(default, str) else json.dumps(default)  # as TOML has it
        shown = "–" if default is None else f"`{value}`"
        lines.append(f"| `{name}` | {shown} | {note[1] if note else ''} |")
    return lines


def burden() -> list[str]:
    from fedgela.burden import Burden, lines

    return lines([Burden(**row) for row in json.loads((ROOT / "results/burden.json").read_text())])


def _data(name: str) -> dict:
    return json.loads((ROOT / f"results/{name}.json").read_text())


def precision() -> list[str]:
    """bf16 against fp32 at the last round, by method: every seed, mean and standard deviation."""
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in _data("precision"):
        groups[row["method"], row["precision"]].append(row)
    seeds = sorted(set.intersection(*({row["seed"] for row in rows} for rows in groups.values())))
    lines = [
        f"| method | precision | GA, seeds {', '.join(map(str, seeds))} | GA mean ± std | local accuracy |"
    ]
    lines.append("|---|---|---|---|---|")
    for (method, kind), rows in sorted(groups.items()):
        rows = [row for row in rows if row["seed"] in seeds]
        GA, PA = ([row[metric] for row in rows] for metric in ("GA", "PA"))
        shown = ", ".join(f"{value:.1f}" for value in GA)
        spread = over(GA, digits=2)
        local = over(PA, digits=2)
        lines.append(f"| {method} | {kind} | {shown} | {spread} | {local} |")
    return lines


def bench(name: str) -> list[str]:
    rows = _data(name)
    columns = {
        "workload": lambda row: row["workload"],
        "engine": lambda row: row["engine"],
        "samples/s": lambda row: f"{row['samples_per_second']:,.0f}",
        "times the plain loop": lambda row: f"{row['ratio_to_plain']:.2f}",
        "middle half": lambda row: (
            "" if row.get("ratio_low") is None else f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        ),
        "start, s": lambda row: f"{row['start_seconds']:.1f}",
        "memory, MB": lambda row: f"{row['peak_memory_mb']:,.0f}",
    }
    if any(row.get("gpu_utilisation") is not None for row in rows):
        columns |= {
            "GPU memory, MB": lambda row: f"{row['peak_gpu_memory_mb']:,.0f}",
            "GPU busy, %": lambda row: f"{row['gpu_utilisation']:.0f}",
            "of the arithmetic limit, %": lambda row: f"{100 * row['arithmetic_share']:.1f}",
        }
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(show(row) for show in columns.values()) + " |" for row in rows]


def federation_overhead() -> list[str]:
    rows = _data("federation_overhead")["rows"]
    sites = sorted({row["sites"] for row in rows})
    names = {"stock": "a Flower app as usual", "fedgela": "`fedgela federation`"}
    lines = ["| | " + " | ".join(f"{n} sites" for n in sites) + " |", "|---|" + "---|" * len(sites)]
    for way, name in names.items():
        found = {row["sites"]: row["overhead"] for row in rows if row["way"] == way}
        lines.append(f"| {name} | " + " | ".join(f"{found[n]:.1f}" for n in sites) + " |")
    return lines


def growth() -> list[str]:
    lines = [
        "| clients | samples | start, s | a round, s | a round with evaluation, s | memory, GB |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['clients']:,} | {row['samples']:,} | {row['start_seconds']:.1f} "
        f"| {row['round_seconds']:.2f} | {row['evaluated_round_seconds']:.2f} "
        f"| {row['peak_memory_gb']:.2f} |"
        for row in _data("growth")
    ]


def measured() -> list[str]:
    """FedAvg and FedGELA at its defaults, on real data, wherever the ledger has both on the same seeds."""
    from fedgela.over_seeds import mean_std, spread
    from fedgela.paper import cells, distinct
    from fedgela.reproduce.ledger import read_ledger
    from fedgela.reproduce.standing import LAST_TENTH, Standing, Standings

    standings = Standings(read_ledger(ROOT / "results/ledger.jsonl"))
    lines = [
        "| data, split, model | clients | seeds | GA, FedAvg | GA, FedGELA | PA, FedAvg | PA, FedGELA |",
        "|---|---|---|---|---|---|---|",
    ]

    def shown(standing: Standing, metric: str, when: str) -> str:
        return mean_std(spread(standing.values(metric, when).values()), digits=1)

    for cell in distinct(c for c in cells(methods="fedgela") if c.measures == "accuracy"):
        (base_cell,) = cells(cell.table, cell.dataset, cell.setting, "fedavg")
        for gela in standings.all_of(cell):
            if any(note.startswith("algorithm.") for note in gela.notes):
                continue
            for base in standings.under(gela.conditions, base_cell):
                if set(base.entries) == set(gela.entries):
                    place = _place(next(iter(gela.entries.values())).config)
                    figures = [
                        shown(standing, metric, when)
                        for metric, when in (("GA", LAST_TENTH), ("PA", "last"))
                        for standing in (base, gela)
                    ]
                    row = [*place, str(len(gela.entries)), *figures]
                    lines.append("| " + " | ".join(row) + " |")
    return lines


def phi_measured() -> list[str]:
    """FedGELA's forms of Phi at the paper's number of rounds, FedAvg and FedGE beside them, wherever the
    ledger has several forms of one task with seed 0; all other options at their defaults."""
    from dataclasses import asdict

    from fedgela.algorithms.fedgela import FedGE, FedGELA
    from fedgela.reproduce.ledger import read_ledger
    from fedgela.reproduce.settings import settings_hash
    from fedgela.reproduce.standing import LAST_TENTH, value_of

    forms = ["power:1", "power:0.5", "even", "paper-sqrt", "paper-exp"]
    methods = {form: {"name": "fedgela", **asdict(FedGELA(phi=form))} for form in forms}
    methods |= {"fedavg": {"name": "fedavg"}, "fedge": {"name": "fedge", **asdict(FedGE())}}
    found: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for entry in read_ledger(ROOT / "results/ledger.jsonl"):
        settings = entry.settings()
        if entry.kind != "run" or entry.seed != 0 or entry.rounds_run < entry.rounds_paper or not settings:
            continue
        method = entry.config["algorithm"].items()
        name = next((name for name, own in methods.items() if method <= own.items()), None)
        if name is not None:
            task = settings_hash({key: value for key, value in settings.items() if key != "algorithm"})
            key = (*_place(entry.config, "`"), task, entry.data.fingerprint, entry.precision or "")
            GA, PA = value_of(entry, "GA", LAST_TENTH), value_of(entry, "PA", "last")
            found[key][name] = f"{GA:.1f}, {PA:.1f}"
    shown = ["fedavg", "fedge", *forms]
    lines = [
        "| data, split, model | clients | " + " | ".join(f"{name}: GA, PA" for name in shown) + " |",
        "|---" * (len(shown) + 2) + "|",
    ]
    for (where, clients, *_), figures in found.items():
        if len(figures.keys() & set(forms)) > 1:
            row = [where, clients, *(figures.get(name, "–") for name in shown)]
            lines.append("| " + " | ".join(row) + " |")
    return lines


def resnet_measured() -> list[str]:
    """Runs of ResNet18 on CIFAR-10 that are as long as the paper's, with GA over longer and shorter ends."""
    from fedgela.paper import find_cell
    from fedgela.reproduce.ledger import read_ledger
    from fedgela.reproduce.page import options_of

    lines = [
        "| split, clients of a round | method | GA paper | GA best | GA, last tenth | GA, last half "
        "| PA paper | PA last |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = []
    for entry in read_ledger(ROOT / "results/ledger.jsonl"):
        config = entry.config
        if (config["dataset"], config.get("model"), entry.kind) != ("cifar10", "resnet18", "run"):
            continue
        if entry.rounds_run < entry.rounds_paper:
            continue
        cell, options = find_cell(entry.cells[0]), options_of(entry)
        printed = {metric: number.text for metric, number in cell.printed.items() if not options}
        ends = [statistics.fmean(entry.GA_by_round[-entry.rounds_run // part :]) for part in (10, 2)]
        name = f"{cell.method} ({options})" if options else cell.method
        figures = [f"{entry.GA.best:.1f}", *(f"{GA:.1f}" for GA in ends)]
        split = f"`{config['partition']}`, {config['sample']} of {config['clients']}"
        row = [split, name, printed.get("GA", "–"), *figures]
        found.append([*row, printed.get("PA", "–"), f"{entry.PA.last:.1f}"])
    return lines + ["| " + " | ".join(row) + " |" for row in sorted(found, key=lambda row: row[:2])]


def angles_measured() -> list[str]:
    """FedAvg's classifier vectors at the last round, wherever clients lack classes: Figure 2, and more."""
    from fedgela.reproduce.ledger import read_ledger

    lines = [
        "| data, split, model | clients of a round | missing, clients | missing, server | existing, clients "
        "| existing, server |",
        "|---|---|---|---|---|---|",
    ]
    names = [f"angle_{group}_{place}" for group in ("missing", "existing") for place in ("clients", "server")]
    for entry in read_ledger(ROOT / "results/ledger.jsonl"):
        angles = [entry.angles.get(name) for name in names]
        if entry.config["algorithm"]["name"] == "fedavg" and None not in angles:
            figures = " | ".join(f"{angle:.1f}" for angle in angles)
            line = "| " + " | ".join(_place(entry.config, "`")) + f" | {figures} |"
            if line not in lines:  # a run that was done twice, once with more tracked
                lines.append(line)
    return lines


def class_means() -> list[str]:
    """Angles between class means at the last round (Figures 3 and 5)."""
    from fedgela.reproduce.ledger import read_ledger

    lines = [
        "| data, split, model | clients of a round | method | existing, clients | all, server |",
        "|---|---|---|---|---|",
    ]
    for entry in read_ledger(ROOT / "results/ledger.jsonl"):
        names = ("class_mean_angle_existing_clients", "class_mean_angle_all_server")
        angles = [entry.angles.get(name) for name in names]
        if None not in angles:
            figures = " | ".join(f"{angle:.1f}" for angle in angles)
            method = entry.config["algorithm"]["name"]
            lines.append("| " + " | ".join([*_place(entry.config, "`"), method]) + f" | {figures} |")
    return lines


def angles_by_round() -> list[str]:
    """Of the classes that clients lack, on digits, means over seeds."""
    data = _data("angles")
    groups: dict[tuple[str, str, str], list[dict]] = defaultdict(list)
    for row in data["rows"]:
        groups[row["partition"], row["method"], row["of"]].append(row)
    lines = [
        "| split | method | of | " + " | ".join(f"round {r}" for r in data["rounds"]) + " |",
        "|---" * (len(data["rounds"]) + 3) + "|",
    ]
    for (partition, method, of), rows in groups.items():
        means = [statistics.fmean(row[str(r)] for row in rows) for r in data["rounds"]]
        figures = " | ".join(f"{mean:.1f}" for mean in means)
        lines.append(f"| `{partition}` | {method} | {of} | {figures} |")
    return lines


Rows = dict[str, dict[str, list[dict]]]  # by method and place


def prior() -> list[str]:
    """GA and PA over seeds, every method with one setting for all splits."""
    groups: Rows = defaultdict(lambda: defaultdict(list))
    for row in _data("sweeps/prior")["rows"]:
        groups[row["method"]][f"{row['dataset']}, `{row['partition']}`"].append(row)
    return _by_method(groups, "GA, PA", "PA")


def uneven() -> list[str]:
    """GA over seeds, plain and with all classes counted alike, where the classes are uneven overall."""
    groups: Rows = defaultdict(lambda: defaultdict(list))
    for row in _data("sweeps/uneven")["rows"]:
        place = f"{row['dataset'].partition(',')[0]}, `{row['partition']}`"
        groups[row["method"]][place].append(row["equal"])
        if "mean" in row:
            groups[f"{row['method']}; mean lengths"][place].append(row["mean"])
    return _by_method(groups, "GA, balanced", "GA_balanced")


def _by_method(groups: Rows, title: str, beside: str) -> list[str]:
    """A row a method and a column a place: GA with its spread, and the mean of what stands beside it."""
    places = list(next(iter(groups.values())))
    lines = ["| method | " + " | ".join(f"{place}: {title}" for place in places) + " |"]
    lines.append("|---" * (len(places) + 1) + "|")
    for method, by_place in groups.items():
        figures = []
        for place in places:
            GA, other = ([row[key] for row in by_place[place]] for key in ("GA", beside))
            figures.append(f"{over(GA)}, {statistics.fmean(other):.1f}")
        lines.append(f"| {method} | " + " | ".join(figures) + " |")
    return lines


def _place(config: dict, quote: str = "") -> tuple[str, str]:
    """Data, split and model of a line of the ledger, and how many clients of how many take part."""
    where = f"{config['dataset']}, {quote}{config['partition']}{quote}, {config['model']}"
    return where, f"{config.get('sample') or config['clients']} of {config['clients']}"


def length_and_form() -> list[str]:
    """GA over seeds by Phi's form and E_W."""
    groups: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _data("sweeps/length-and-form")["rows"]:
        groups[row["partition"], row["phi"]][row["E_W"]].append(row["GA"])
    lengths = sorted({E_W for group in groups.values() for E_W in group})
    lines = [
        "| split | Phi | " + " | ".join(f"E_W = {E_W:g}" for E_W in lengths) + " |",
        "|---" * (len(lengths) + 2) + "|",
    ]
    for (partition, form), group in groups.items():
        cells = [over(group[E_W]) for E_W in lengths]
        lines.append(f"| `{partition}` | {form} | " + " | ".join(cells) + " |")
    return lines


def phi_forms() -> list[str]:
    """GA and local accuracy of FedGELA's forms of Phi, and of FedAvg beside them, by data and split."""
    rows = _data("sweeps/phi-forms")["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "fedge"))
    places = dict.fromkeys((row["settings"]["dataset"], row["settings"]["partition"]) for row in rows)
    lines = [
        "| data, split | seeds | " + " | ".join(f"{method}: GA, local" for method in methods) + " |",
        "|---" * (len(methods) + 2) + "|",
    ]
    for dataset, partition in sorted(places):
        found = {
            row["method"]: row
            for row in rows
            if (row["settings"]["dataset"], row["settings"]["partition"]) == (dataset, partition)
        }
        cells = [
            f"{over(row['GA'])}, {row['local_mean']:.1f}" for row in (found[method] for method in methods)
        ]
        seeds = len(found[methods[0]]["seeds"])
        lines.append(f"| {dataset}, `{partition}` | {seeds} | " + " | ".join(cells) + " |")
    return lines


def many_classes() -> list[str]:
    """CIFAR-100 on validation data, by Phi and E_W and seed; the best GA first."""
    lines = ["| method | setting | seed | GA | local accuracy | by class |", "|---|---|---|---|---|---|"]
    for row in sorted(rows_of("cifar100-simple-cnn"), key=lambda row: (row["settings"]["seed"], -row["GA"])):
        figures = [f"{row[key]:.1f}" for key in ("GA", "local_accuracy", "local_accuracy_balanced")]
        name, setting = method_of(row["settings"]), chosen(row["settings"]) or "–"
        lines.append(f"| {name} | {setting} | {row['settings']['seed']} | " + " | ".join(figures) + " |")
    return lines


def alignment() -> list[str]:
    """Mean cosine of clients' features with their class's vector, by the class's share of them; and GA."""
    found = _data("alignment")
    partitions = list(dict.fromkeys(row["partition"] for row in found["rows"]))
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    edges = found["edges"]
    ranges = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]
    lines = [
        "| split | Phi | " + " | ".join(f"cosine, x {text}" for text in ranges) + " | GA |",
        "|---" * (len(ranges) + 3) + "|",
    ]
    for partition in partitions:
        for method in methods:
            rows = [r for r in found["rows"] if (r["partition"], r["method"]) == (partition, method)]
            cells = []
            for i in range(len(ranges)):
                samples = sum(row["samples"][i] for row in rows)
                cosine = sum(row["cosine_sums"][i] for row in rows) / samples if samples else None
                cells.append("–" if cosine is None else f"{cosine:.2f}")
            GA = [row["GA"] for row in rows]
            cells.append(over(GA))
            lines.append(f"| `{partition}` | {method} | " + " | ".join(cells) + " |")
    return lines


def render(marker: str) -> list[str]:
    name, *rest = marker.split()
    if name == "demo":
        return ["```", *(ROOT / "results/demo.txt").read_text().splitlines(), "```"]
    whole = {
        "alignment": alignment,
        "angles-by-round": angles_by_round,
        "angles-measured": angles_measured,
        "burden": burden,
        "federation-overhead": federation_overhead,
        "growth": growth,
        "keys": keys,
        "length-and-form": length_and_form,
        "many-classes": many_classes,
        "measured": measured,
        "phi-forms": phi_forms,
        "phi-measured": phi_measured,
        "resnet-measured": resnet_measured,
        "class-means": class_means,
        "precision": precision,
        "prior": prior,
        "uneven": uneven,
    }
    if name in whole:
        return whole[name]()
    if name == "bench":
        return bench(rest[0])
    if name == "tuned":
        return tuned(f"tuned-{rest[0]}")
    if name == "digits-demo":
        return over_seeds("digits-demo-first", "digits-demo-second", top=3)
    if name == "digits-20-rounds":
        return over_seeds(name, top=2)
    if name == "fedgen-digits":
        return by_strength(name)
    if name == "digits-options":
        return options(name)
    return single_runs(name, rest[0])


def main() -> None:
    for path in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]):
        text = path.read_text()
        new = re.sub(
            r"<!-- table: (.*?) -->\n.*?<!-- end -->",
            lambda m: "\n".join([f"<!-- table: {m[1]} -->", *render(m[1]), "<!-- end -->"]),
            text,
            flags=re.DOTALL,
        )
        if new != text:
            path.write_text(new)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
