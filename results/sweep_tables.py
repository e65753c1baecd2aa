"""The docs' tables of what results/*.json and results/sweeps/*.json hold, each as Markdown."""

import inspect
import itertools
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

from fedgela.burden import Burden, lines
from fedgela.config import Experiment
from fedgela.grids import Grid

RESULTS = Path(__file__).resolve().parent
# of the sweep over FedGELA's options: what is the same everywhere, and what runs over partitions and seeds
BASE = {"lr": "0.03", "algorithm.E_W": "3"}
FREE = ("dataset", "validation", "rounds", "epochs", "batch_size", "partition", "seed")
SEARCHED = ("lr", "algorithm.E_W", "algorithm.phi")


# -- what several tables need ----------------------------------------------------------------------


def held_in(name: str) -> dict:
    """What results/NAME.json holds."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows_of(*sweeps: str) -> list[dict]:
    return [row for name in sweeps for row in held_in(f"sweeps/{name}")["rows"]]


def table(head: list[str], rows: list[list[str]]) -> str:
    return Grid(head, rows).to_markdown()


def over_seeds(values: list[float], digits: int = 1) -> str:
    """Mean and standard deviation of values on several seeds; of one seed, its value."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def method_of(settings: dict[str, str]) -> str:
    return settings.get("algorithm") or settings.get("algorithm.name") or "fedgela"


def setting_of(settings: dict[str, str]) -> str:
    """What was searched over, without the method."""
    return ", ".join(f"{k.removeprefix('algorithm.')} = {settings[k]}" for k in SEARCHED if k in settings)


# -- searches --------------------------------------------------------------------------------------


def single_runs(sweep: str, partition: str) -> str:
    """Runs of one seed at the last round that all of them have, the best GA first."""
    rows = [row for row in rows_of(sweep) if row["settings"]["partition"] == partition]
    rounds = min(len(row["GA"]) for row in rows)
    cells = []
    for row in sorted(rows, key=lambda row: -row["GA"][rounds - 1]):
        settings, GA, PA = row["settings"], row["GA"][rounds - 1], row["PA"][rounds - 1]
        cells.append([method_of(settings), setting_of(settings), f"{GA:.1f}", f"{PA:.1f}"])
    title = f"CIFAR-10, {rows[0]['settings']['model']}, `{partition}`, round {rounds}:"
    return f"{title}\n\n{table(['method', 'setting', 'GA', 'local accuracy'], cells)}"


def tuned(name: str) -> str:
    """Of every method its default and the best of its trials, by the mean of GA and PA."""
    trials: dict[str, list[dict]] = defaultdict(list)
    for trial in held_in(f"sweeps/tuned-{name}")["trials"]:
        trials[trial["method"]].append(trial)

    def of_both(trial: dict) -> float:
        return trial["GA"] + trial["PA"]

    def shown(trial: dict) -> list[str]:
        values = {
            key: f"{value:g}" if isinstance(value, float) else value
            for key, value in trial["settings"].items()
        }
        setting = ", ".join(f"{key} = {value}" for key, value in values.items())
        return [setting, f"{trial['GA']:.1f}", f"{trial['PA']:.1f}"]

    best = {method: max(of_method, key=of_both) for method, of_method in trials.items()}
    return table(
        ["method", "trials", "first trial", "GA", "PA", "the best", "GA", "PA"],
        [
            [method, str(len(trials[method])), *shown(trials[method][0]), *shown(best[method])]
            for method in sorted(trials, key=lambda method: -of_both(best[method]))
        ],
    )


def by_strength() -> str:
    """FedGen's last round on validation data, by alpha = beta."""
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in rows_of("fedgen-digits"):
        groups[row["settings"]["partition"], row["settings"]["alpha"]].append(row)
    cells = []
    for (partition, alpha), rows in groups.items():
        means = [statistics.fmean(row[metric] for row in rows) for metric in ("GA", "PA")]
        seeds = ", ".join(row["settings"]["seed"] for row in rows)
        cells.append([f"`{partition}`", alpha, seeds, *(f"{mean:.1f}" for mean in means)])
    return table(["digits, 10 rounds", "alpha = beta", "seeds", "GA", "PA"], cells)


def best_settings(*sweeps: str, top: int) -> str:
    """The best settings of each method by mean GA at the last round; those with the most seeds first."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows_of(*sweeps):
        groups[method_of(row["settings"]), setting_of(row["settings"])].append(row["GA"][-1])
    cells = []
    for method in ("fedavg", "fedge", "fedgela"):
        found = [
            (len(last), statistics.fmean(last), statistics.stdev(last), setting)
            for (name, setting), last in groups.items()
            if name == method
        ]
        for seeds, mean, std, setting in sorted(found, reverse=True)[:top]:
            cells.append([method, setting, str(seeds), f"{mean:.1f} ± {std:.1f}"])
    return table(["method", "setting", "seeds", "GA last, mean ± std"], cells)


def options() -> str:
    """One option changed at a time: mean GA and local accuracy at the last round, by partition."""
    groups: dict[str, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("digits-options"):
        settings = row["settings"]
        changed = {k: v for k, v in settings.items() if k not in FREE and BASE.get(k) != v}
        label = ", ".join(f"{k.removeprefix('algorithm.')} = {v}" for k, v in changed.items())
        groups[label or "the base"][settings["partition"]].append(row)
    parts = sorted({part for by_part in groups.values() for part in by_part})
    return table(
        ["changed", *(f"{metric}, `{part}`" for part in parts for metric in ("GA", "local"))],
        [
            [
                label,
                *(
                    over_seeds([row[metric][-1] for row in by_part[part]])
                    for part in parts
                    for metric in ("GA", "PA")
                ),
            ]
            for label, by_part in groups.items()
        ],
    )


def many_classes() -> str:
    """CIFAR-100 on validation data, by Phi and E_W and seed; the best GA first."""
    cells = []
    for row in sorted(rows_of("cifar100-simple-cnn"), key=lambda row: (row["settings"]["seed"], -row["GA"])):
        settings = row["settings"]
        figures = [f"{row[key]:.1f}" for key in ("GA", "local_accuracy", "local_accuracy_balanced")]
        cells.append([method_of(settings), setting_of(settings) or "–", str(settings["seed"]), *figures])
    return table(["method", "setting", "seed", "GA", "local accuracy", "by class"], cells)


# -- forms of Phi ----------------------------------------------------------------------------------

Rows = dict[str, dict[str, list[dict]]]  # by method and place


def prior() -> str:
    """GA and PA over seeds, every method with one setting for all splits."""
    groups: Rows = defaultdict(lambda: defaultdict(list))
    for row in rows_of("prior"):
        groups[row["method"]][f"{row['dataset']}, `{row['partition']}`"].append(row)
    return _by_method(groups, "GA, PA", "PA")


def uneven() -> str:
    """GA over seeds, plain and with all classes counted alike, where the classes are uneven overall."""
    groups: Rows = defaultdict(lambda: defaultdict(list))
    for row in rows_of("uneven"):
        place = f"{row['dataset'].partition(',')[0]}, `{row['partition']}`"
        groups[row["method"]][place].append(row["equal"])
        if "mean" in row:
            groups[f"{row['method']}; mean lengths"][place].append(row["mean"])
    return _by_method(groups, "GA, balanced", "GA_balanced")


def _by_method(groups: Rows, title: str, beside: str) -> str:
    """A row a method and a column a place: GA with its spread, and the mean of what stands beside it."""
    places = list(next(iter(groups.values())))
    cells = []
    for method, by_place in groups.items():
        figures = []
        for place in places:
            GA, other = ([row[key] for row in by_place[place]] for key in ("GA", beside))
            figures.append(f"{over_seeds(GA)}, {statistics.fmean(other):.1f}")
        cells.append([method, *figures])
    return table(["method", *(f"{place}: {title}" for place in places)], cells)


def length_and_form() -> str:
    """GA over seeds by Phi's form and E_W."""
    groups: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("length-and-form"):
        groups[row["partition"], row["phi"]][row["E_W"]].append(row["GA"])
    lengths = sorted({E_W for by_length in groups.values() for E_W in by_length})
    return table(
        ["split", "Phi", *(f"E_W = {E_W:g}" for E_W in lengths)],
        [
            [f"`{partition}`", form, *(over_seeds(by_length[E_W]) for E_W in lengths)]
            for (partition, form), by_length in groups.items()
        ],
    )


def learned_length() -> str:
    """GA over seeds with the ETF's length fixed and learned, and how long it is in the end."""
    groups: dict[tuple[str, str], dict[tuple[float, bool], list[dict]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows_of("learned-length"):
        groups[row["partition"], row["phi"]][row["E_W"], row["learned"]].append(row)
    lengths = sorted({E_W for by_length in groups.values() for E_W, _ in by_length})
    cells = []
    for (partition, form), by_length in groups.items():
        fixed = [over_seeds([row["GA"] for row in by_length[E_W, False]]) for E_W in lengths]
        learned = []
        for E_W in lengths:
            rows = by_length[E_W, True]
            ends = sorted(row["E_W_last"] for row in rows)
            learned.append(f"{over_seeds([row['GA'] for row in rows])} ({ends[0]:.0f} to {ends[-1]:.0f})")
        cells.append([f"`{partition}`", form, *fixed, *learned])
    head = [f"E_W = {E_W:g}" for E_W in lengths] + [f"learned from {E_W:g} (its end)" for E_W in lengths]
    return table(["split", "Phi", *head], cells)


def averages() -> str:
    """GA over the last tenth of the rounds by the weight of earlier rounds in the averaged global model."""
    groups: dict[tuple[str, str, str], dict[float, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("averages"):
        place = f"{row['dataset']}, `{row['partition']}`"
        groups[place, row["clients"], row["method"]][row["server_average"]].append(row)
    weights = sorted({weight for by_weight in groups.values() for weight in by_weight})
    cells = []
    for (place, clients, method), by_weight in groups.items():
        best = over_seeds([row["GA_best"] for row in by_weight[0.0]])
        figures = [over_seeds([row["GA_last_tenth"] for row in by_weight[weight]]) for weight in weights]
        cells.append([place, clients, method, best, *figures])
    head = ["data, split", "clients", "method", "best round of 0", *(f"{weight:g}" for weight in weights)]
    return table(head, cells)


def phi_forms() -> str:
    """GA and local accuracy of FedGELA's forms of Phi, and of FedAvg beside them, by data and split."""
    by_place: dict[tuple[str, str], dict[str, dict]] = defaultdict(dict)
    for row in rows_of("phi-forms"):
        by_place[row["settings"]["dataset"], row["settings"]["partition"]][row["method"]] = row
    methods = dict.fromkeys(row["method"] for row in rows_of("phi-forms") if row["method"] != "fedge")
    cells = []
    for (dataset, partition), of_method in sorted(by_place.items()):
        found = [of_method[method] for method in methods]
        figures = [f"{over_seeds(row['GA'])}, {row['local_mean']:.1f}" for row in found]
        cells.append([f"{dataset}, `{partition}`", str(len(found[0]["seeds"])), *figures])
    return table(["data, split", "seeds", *(f"{method}: GA, local" for method in methods)], cells)


def alignment() -> str:
    """Mean cosine of clients' features with their class's vector, by the class's share of them; and GA."""
    found = held_in("alignment")
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in found["rows"]:
        groups[row["partition"], row["method"]].append(row)
    ranges = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(found["edges"])]

    def mean_cosine(rows: list[dict], place: int) -> str:
        samples = sum(row["samples"][place] for row in rows)
        return f"{sum(row['cosine_sums'][place] for row in rows) / samples:.2f}" if samples else "–"

    return table(
        ["split", "Phi", *(f"cosine, x {text}" for text in ranges), "GA"],
        [
            [
                f"`{partition}`",
                method,
                *(mean_cosine(rows, place) for place in range(len(ranges))),
                over_seeds([row["GA"] for row in rows]),
            ]
            for (partition, method), rows in groups.items()
        ],
    )


def angles_by_round() -> str:
    """Of the classes that clients lack, on digits, means over seeds."""
    found = held_in("angles")
    groups: dict[tuple[str, str, str], list[dict]] = defaultdict(list)
    for row in found["rows"]:
        groups[row["partition"], row["method"], row["of"]].append(row)
    rounds = [str(number) for number in found["rounds"]]
    return table(
        ["split", "method", "of", *(f"round {number}" for number in rounds)],
        [
            [
                f"`{partition}`",
                method,
                of,
                *(f"{statistics.fmean(row[number] for row in rows):.1f}" for number in rounds),
            ]
            for (partition, method, of), rows in groups.items()
        ],
    )


# -- what it costs ---------------------------------------------------------------------------------


def burden() -> str:
    return "\n".join(lines([Burden(**row) for row in held_in("burden")]))


def precision() -> str:
    """bf16 against fp32 at the last round, by method: every seed, mean and standard deviation."""
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in held_in("precision"):
        groups[row["method"], row["precision"]].append(row)
    seeds = sorted(set.intersection(*({row["seed"] for row in rows} for rows in groups.values())))
    cells = []
    for (method, kind), rows in sorted(groups.items()):
        GA, PA = ([row[metric] for row in rows if row["seed"] in seeds] for metric in ("GA", "PA"))
        each = ", ".join(f"{value:.1f}" for value in GA)
        cells.append([method, kind, each, over_seeds(GA, digits=2), over_seeds(PA, digits=2)])
    listed = ", ".join(map(str, seeds))
    return table(["method", "precision", f"GA, seeds {listed}", "GA mean ± std", "local accuracy"], cells)


def bench(name: str) -> str:
    rows = held_in(name)
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
    return table(list(columns), [[show(row) for show in columns.values()] for row in rows])


def federation_overhead() -> str:
    rows = held_in("federation_overhead")["rows"]
    sites = sorted({row["sites"] for row in rows})
    cells = []
    names = {
        "stock": "a Flower app as usual",
        "fedgela": "`fedgela federation`",
        "masked": "with `--secure-aggregation`",
    }
    for way, name in names.items():
        found = {row["sites"]: row["overhead"] for row in rows if row["way"] == way}
        cells.append([name, *(f"{found[number]:.1f}" for number in sites)])
    return table(["", *(f"{number} sites" for number in sites)], cells)


def growth() -> str:
    return table(
        ["clients", "samples", "start, s", "a round, s", "a round with evaluation, s", "memory, GB"],
        [
            [
                f"{row['clients']:,}",
                f"{row['samples']:,}",
                f"{row['start_seconds']:.1f}",
                f"{row['round_seconds']:.2f}",
                f"{row['evaluated_round_seconds']:.2f}",
                f"{row['peak_memory_gb']:.2f}",
            ]
            for row in held_in("growth")
        ],
    )


# -- what is not measured --------------------------------------------------------------------------


def keys() -> str:
    """Every key of an experiment with its default, and with the comment that the source has beside it."""
    source = Path(inspect.getfile(Experiment)).read_text()
    cells = []
    for name, field in Experiment.model_fields.items():
        definition = re.search(rf"^    {name}: (?:.*\n(?!    \w+:|\n))*.*", source, re.MULTILINE)
        found = re.search(r"  # (.*)", definition[0]) if definition else None
        note = found[1].replace("None: ", "") if found else ""  # TOML has no None: the key is left out
        default = "fedgela" if name == "algorithm" else field.default
        value = default if isinstance(default, str) else json.dumps(default)  # as TOML has it
        cells.append([f"`{name}`", "–" if default is None else f"`{value}`", note])
    return table(["key", "default", "what it is"], cells)
