"""The docs' tables of what results/*.json and results/sweeps/*.json hold, each as Markdown."""

import itertools
import json
import statistics
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedgela.burden import Burden, lines
from fedgela.grids import Grid
from fedgela.over_seeds import mean_std, spread

RESULTS = Path(__file__).resolve().parent
# of the sweep over FedGELA's options: what is the same everywhere, and what runs over partitions and seeds
BASE = {"lr": "0.03", "algorithm.E_W": "3"}
FREE = ("dataset", "validation", "rounds", "epochs", "batch_size", "partition", "seed")
SEARCHED = ("lr", "algorithm.E_W", "algorithm.phi")

Row = dict[str, Any]  # of a sweep: a run's settings and figures


# -- what several tables need ----------------------------------------------------------------------


def held_in(name: str) -> Any:
    """What results/NAME.json holds."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows_of(*sweeps: str) -> list[Row]:
    return [row for name in sweeps for row in held_in(f"sweeps/{name}")["rows"]]


def table(head: list[str], rows: list[list[str]]) -> str:
    return Grid(head, rows).to_markdown()


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def over_seeds(values: list[float], digits: int = 1) -> str:
    """Mean and standard deviation of values on several seeds; of one seed, its value."""
    return mean_std(spread(values), digits=digits)


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
    trials = grouped(held_in(f"sweeps/tuned-{name}")["trials"], itemgetter("method"))

    def of_both(trial: Row) -> float:
        return float(trial["GA"] + trial["PA"])

    def shown(trial: Row) -> list[str]:
        values = {
            key: f"{value:g}" if isinstance(value, float) else value
            for key, value in trial["settings"].items()
            if value is not None  # left to the method
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
    key = itemgetter("partition", "alpha")
    groups = grouped(rows_of("fedgen-digits"), lambda row: key(row["settings"]))
    cells = []
    for (partition, alpha), rows in groups.items():
        means = [statistics.fmean(row[metric] for row in rows) for metric in ("GA", "PA")]
        seeds = ", ".join(row["settings"]["seed"] for row in rows)
        cells.append([f"`{partition}`", alpha, seeds, *(f"{mean:.1f}" for mean in means)])
    return table(["digits, 10 rounds", "alpha = beta", "seeds", "GA", "PA"], cells)


def best_settings(*sweeps: str, top: int) -> str:
    """The best settings of each method by mean GA at the last round; those with the most seeds first."""
    by_method = grouped(rows_of(*sweeps), lambda row: method_of(row["settings"]))
    cells = []
    for method in ("fedavg", "fedge", "fedgela"):
        groups = grouped(by_method[method], lambda row: setting_of(row["settings"]))
        last = {setting: [row["GA"][-1] for row in rows] for setting, rows in groups.items()}
        found = sorted(last.items(), key=lambda one: (len(one[1]), statistics.fmean(one[1])), reverse=True)
        cells += [[method, setting, str(len(GA)), over_seeds(GA)] for setting, GA in found[:top]]
    return table(["method", "setting", "seeds", "GA last, mean ± std"], cells)


def options() -> str:
    """One option changed at a time: mean GA and local accuracy at the last round, by partition."""

    def changed(row: Row) -> str:
        own = {k: v for k, v in row["settings"].items() if k not in FREE and BASE.get(k) != v}
        return ", ".join(f"{k.removeprefix('algorithm.')} = {v}" for k, v in own.items()) or "the base"

    parts = sorted({row["settings"]["partition"] for row in rows_of("digits-options")})
    cells = []
    for label, rows in grouped(rows_of("digits-options"), changed).items():
        by_part = grouped(rows, lambda row: row["settings"]["partition"])
        figures = [[row[of][-1] for row in by_part[part]] for part in parts for of in ("GA", "PA")]
        cells.append([label, *map(over_seeds, figures)])
    return table(["changed", *(f"{metric}, `{part}`" for part in parts for metric in ("GA", "local"))], cells)


def many_classes() -> str:
    """CIFAR-100 on validation data, by Phi and E_W and seed; the best GA first."""
    cells = []
    for row in sorted(rows_of("cifar100-simple-cnn"), key=lambda row: (row["settings"]["seed"], -row["GA"])):
        settings = row["settings"]
        figures = [f"{row[key]:.1f}" for key in ("GA", "local_accuracy", "local_accuracy_balanced")]
        cells.append([method_of(settings), setting_of(settings) or "–", str(settings["seed"]), *figures])
    return table(["method", "setting", "seed", "GA", "local accuracy", "by class"], cells)


# -- forms of Phi ----------------------------------------------------------------------------------


def prior() -> str:
    """GA and PA over seeds, every method with one setting for all splits."""
    return _by_method(rows_of("prior"), "GA, PA", "PA")


def prior_rounds(seeds: str) -> str:
    """GA over the last tenth of the rounds and at best, and local accuracy, of the methods that have several
    seeds, or of all methods by the one seed that all of them have."""
    rows = rows_of("prior-rounds")
    if seeds == "one":
        first = min(row["seed"] for row in rows)
        rows = [row for row in rows if row["seed"] == first]
    cells = []
    for (partition, clients), of_place in grouped(rows, itemgetter("partition", "clients")).items():
        for method, of_method in grouped(of_place, itemgetter("method")).items():
            if seeds == "several" and len(of_method) == 1:
                continue
            keys = ("GA_last_tenth", "GA_best", "local_accuracy")
            figures = [over_seeds([row[key] for row in of_method]) for key in keys]
            cells.append([f"`{partition}`", clients, method, str(len(of_method)), *figures])
    head = ["split", "clients", "method", "seeds", "GA, last tenth", "GA, best", "local accuracy"]
    return table(head, cells)


def uneven() -> str:
    """GA over seeds, plain and with all classes counted alike, where the classes are uneven overall."""
    rows = []
    for row in rows_of("uneven"):
        rows.append(row | row["equal"])
        if "mean" in row:
            rows.append(row | row["mean"] | {"method": f"{row['method']}; mean lengths"})
    return _by_method(rows, "GA, balanced", "GA_balanced")


def _by_method(rows: list[Row], title: str, beside: str) -> str:
    """A row a method and a column a place: GA with its spread, and the mean of what stands beside it."""

    def place_of(row: Row) -> str:
        return f"{row['dataset'].partition(',')[0]}, `{row['partition']}`"

    places = dict.fromkeys(map(place_of, rows))
    cells = []
    for method, of_method in grouped(rows, itemgetter("method")).items():
        by_place = grouped(of_method, place_of)
        figures = []
        for place in places:
            GA, other = ([row[key] for row in by_place[place]] for key in ("GA", beside))
            figures.append(f"{over_seeds(GA)}, {statistics.fmean(other):.1f}")
        cells.append([method, *figures])
    return table(["method", *(f"{place}: {title}" for place in places)], cells)


def two_classes() -> str:
    """Balanced GA over the reported seeds, and the means of GA and PA."""

    def figures(rows: list[Row]) -> str:
        balanced, GA, PA = ([row[key] for row in rows] for key in ("GA_balanced", "GA", "PA"))
        return f"{over_seeds(balanced)}, {statistics.fmean(GA):.1f}, {statistics.fmean(PA):.1f}"

    return _by_federation(figures)


def two_classes_apart() -> str:
    """How far apart the global model's accuracies in the two classes are, the mean over reported seeds."""

    def figures(rows: list[Row]) -> str:
        return f"{statistics.fmean(abs(a - b) for a, b in (row['GA_by_class'] for row in rows)):.0f}"

    return _by_federation(figures)


def _by_federation(figures: Callable[[list[Row]], str]) -> str:
    """A row a federation and a column a method, of data of two classes."""
    found = held_in("sweeps/two-classes")
    rows = [row for row in found["rows"] if row["seed"] in found["reported"]]
    methods = dict.fromkeys(row["method"] for row in rows)
    cells = []
    for place, of_place in grouped(rows, itemgetter("data", "partition", "clients")).items():
        data, partition, clients = place
        by_method = grouped(of_place, itemgetter("method"))
        cells.append([f"{data}, `{partition}`", clients, *(figures(by_method[method]) for method in methods)])
    return table(["data, split", "clients", *methods], cells)


def length_and_form() -> str:
    """GA over seeds by Phi's form and E_W."""
    rows = rows_of("length-and-form")
    lengths = sorted({row["E_W"] for row in rows})
    cells = []
    for (partition, form), of_form in grouped(rows, itemgetter("partition", "phi")).items():
        by_length = grouped(of_form, itemgetter("E_W"))
        GA = [[row["GA"] for row in by_length[E_W]] for E_W in lengths]
        cells.append([f"`{partition}`", form, *map(over_seeds, GA)])
    return table(["split", "Phi", *(f"E_W = {E_W:g}" for E_W in lengths)], cells)


def learned_length() -> str:
    """GA over seeds with the ETF's length fixed and learned, and how long it is in the end."""
    rows = rows_of("learned-length")
    lengths = sorted({row["E_W"] for row in rows})
    cells = []
    for (partition, form), of_form in grouped(rows, itemgetter("partition", "phi")).items():
        by_length = grouped(of_form, itemgetter("E_W", "learned"))
        fixed = [over_seeds([row["GA"] for row in by_length[E_W, False]]) for E_W in lengths]
        learned = []
        for E_W in lengths:
            GA, ends = ([row[key] for row in by_length[E_W, True]] for key in ("GA", "E_W_last"))
            learned.append(f"{over_seeds(GA)} ({min(ends):.0f} to {max(ends):.0f})")
        cells.append([f"`{partition}`", form, *fixed, *learned])
    head = [f"E_W = {E_W:g}" for E_W in lengths] + [f"learned from {E_W:g} (its end)" for E_W in lengths]
    return table(["split", "Phi", *head], cells)


def averages() -> str:
    """GA over the last tenth of the rounds by the weight of earlier rounds in the averaged global model."""
    rows = rows_of("averages")
    weights = sorted({row["server_average"] for row in rows})
    groups = grouped(rows, itemgetter("dataset", "partition", "clients", "method"))
    cells = []
    for (dataset, partition, clients, method), of_method in groups.items():
        by_weight = grouped(of_method, itemgetter("server_average"))
        best = over_seeds([row["GA_best"] for row in by_weight[0.0]])
        figures = [over_seeds([row["GA_last_tenth"] for row in by_weight[weight]]) for weight in weights]
        cells.append([f"{dataset}, `{partition}`", clients, method, best, *figures])
    head = ["data, split", "clients", "method", "best round of 0", *(f"{weight:g}" for weight in weights)]
    return table(head, cells)


def broken_clients() -> str:
    """GA over seeds by the rule of aggregation, and how many classes it loses: fewer than a tenth right."""
    columns = {
        "honest": "all honest",
        "opposite": "two send the opposite",
        "noise": "two send noise",
        "absent": "two absent",
    }

    def shown(rows: list[Row]) -> str:
        lost = statistics.fmean(sum(share < 10 for share in row["by_class"]) for row in rows)
        return f"{over_seeds([row['GA'] for row in rows])}, {lost:.1f}"

    groups = grouped(rows_of("broken-clients"), itemgetter("partition", "method", "rule"))
    cells = []
    for (partition, method, rule), of_rule in groups.items():
        by_clients = grouped(of_rule, itemgetter("clients"))
        figures = [shown(by_clients[clients]) if clients in by_clients else "–" for clients in columns]
        cells.append([f"`{partition}`", method, f"`{rule}`", *figures])
    head = [f"{title}: GA, lost" for title in columns.values()]
    return table(["split", "method", "rule", *head], cells)


def phi_forms() -> str:
    """GA and local accuracy of FedGELA's forms of Phi, and of FedAvg beside them, by data and split."""
    rows = [row for row in rows_of("phi-forms") if row["method"] != "fedge"]
    methods = dict.fromkeys(row["method"] for row in rows)
    place_of = itemgetter("dataset", "partition")
    cells = []
    for (dataset, partition), of_place in sorted(
        grouped(rows, lambda row: place_of(row["settings"])).items()
    ):
        by_method = {row["method"]: row for row in of_place}
        found = [by_method[method] for method in methods]
        figures = [f"{over_seeds(row['GA'])}, {row['local_mean']:.1f}" for row in found]
        cells.append([f"{dataset}, `{partition}`", str(len(found[0]["seeds"])), *figures])
    return table(["data, split", "seeds", *(f"{method}: GA, local" for method in methods)], cells)


def alignment() -> str:
    """Mean cosine of clients' features with their class's vector, by the class's share of them; and GA."""
    found = held_in("alignment")
    groups = grouped(found["rows"], itemgetter("partition", "method"))
    ranges = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(found["edges"])]

    def mean_cosine(rows: list[Row], place: int) -> str:
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
    groups = grouped(found["rows"], itemgetter("partition", "method", "of"))
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
    groups = grouped(held_in("precision"), itemgetter("method", "precision"))
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
    columns: dict[str, Callable[[Row], str]] = {
        "workload": itemgetter("workload"),
        "engine": itemgetter("engine"),
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
