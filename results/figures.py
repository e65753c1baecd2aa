"""Draw the docs' pictures from what was measured: docs/images/*.svg.

python results/figures.py
"""

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from ledger_tables import MEASURED, config_of, measured_pairs, on
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedgela.reproduce.standing import Standing

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#332288", "#661100"]


def round_time() -> None:
    """A bar a measurement: the parts of a round, and where there was a GPU its kernels' time by kind."""
    bars: list[tuple[str, dict[str, float]]] = []
    for row in json.loads((ROOT / "results/round_time.json").read_text()):
        where = row["machine"]["gpu"] or f"{row['machine']['cores']} CPU cores"
        bars.append((f"{row['model']}, {where}\na round", row["seconds"]))
        if row["kernel_microseconds"]:
            kernels = sorted(row["kernel_microseconds"].items(), key=lambda kind: -kind[1])
            bars.append((f"{row['model']}, {where}\nkernels of training", dict(kernels)))
    figure, axis = plt.subplots(figsize=(7.5, 0.9 + 0.8 * len(bars)), layout="constrained")
    names = list(dict.fromkeys(name for _, parts in bars for name in parts))
    for y, (_, parts) in enumerate(bars):
        left, whole = 0.0, sum(parts.values())
        for name, value in parts.items():
            share = 100 * value / whole
            axis.barh(y, share, left=left, height=0.6, color=COLOURS[names.index(name) % len(COLOURS)])
            if share > 6:
                axis.text(left + share / 2, y, f"{share:.0f} %", ha="center", va="center", color="white")
            left += share
    axis.set_yticks(range(len(bars)), [label for label, _ in bars])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the time, %")
    handles = [Patch(color=COLOURS[i % len(COLOURS)]) for i in range(len(names))]
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    save(figure, "round-time.svg")


FEDAVG, FEDGELA, EVEN = "#777777", "#0072b2", "#d55e00"
GROUPS = (
    "Two classes a client",
    "10 of 50 clients train in a round",
    "All 10 clients train in every round",
    "Classes uneven over all clients",
)
UNEVEN = ("fed-isic2019", "shakespeare")  # 49 to 1, and the characters of a text
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "fed-isic2019": "Fed-ISIC2019",
    "mnist_by_writer": "MNIST by writer",
    "shakespeare": "Shakespeare",
    "simple-cnn": "Simple-CNN",
    "resnet18": "ResNet18",
    "lstm": "LSTM",
    "iid": "IID",
    "natural": "",
}


def group_of(config: dict[str, Any]) -> str:
    if config["dataset"] in UNEVEN:
        return GROUPS[3]
    if config["partition"].startswith("classes:"):
        return GROUPS[0]
    return GROUPS[1] if config["sample"] < config["clients"] else GROUPS[2]


def label_of(config: dict[str, Any]) -> str:
    kind, _, beta = config["partition"].partition(":")
    split = f"Dir {beta}" if kind == "dirichlet" else NAMES.get(kind, f"{config['clients']} clients")
    return ", ".join(filter(None, [NAMES[config["dataset"]], split, NAMES[config["model"]]]))


def mean(standing: Standing, metric: str, when: str) -> float:
    return statistics.fmean(standing.values(metric, when).values())


def measured() -> None:
    """FedAvg's and FedGELA's GA and PA, a line a setting: the table of the README as a picture. And FedGELA
    with `even` where it was run on the same seeds."""
    pairs = sorted(measured_pairs(), key=lambda pair: GROUPS.index(group_of(config_of(pair[1]))))
    evens = {(base.cell.id, base.conditions): even for base, even in measured_pairs("even")}
    places: list[tuple[float, str]] = []
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 6.6), sharey=True, layout="constrained")
    y, group = 0.0, ""
    for base, gela in pairs:
        config = config_of(gela)
        if group_of(config) != group:
            group = group_of(config)
            axes[0].text(0, y + 0.2, group, transform=axes[0].get_yaxis_transform(), fontweight="bold")
            y += 1
        even = evens.get((base.cell.id, base.conditions))
        for axis, (metric, when) in zip(axes, MEASURED, strict=True):
            before, after = (mean(standing, metric, when) for standing in (base, gela))
            axis.plot([before, after], [y, y], color="#bbbbbb", linewidth=2, zorder=1)
            axis.scatter(before, y, s=34, color="white", edgecolor=FEDAVG, linewidth=1.5, label="FedAvg")
            axis.scatter(after, y, s=34, color=FEDGELA, label="FedGELA")
            if even is not None and even.entries.keys() >= gela.entries.keys():
                instead, name = mean(on(gela.entries, even), metric, when), "FedGELA, phi = even"
                axis.scatter(instead, y, s=14, color=EVEN, marker="D", label=name)
        places.append((y, label_of(config)))
        y += 1
    axes[0].set_yticks(*zip(*places, strict=True))
    axes[0].set_ylim(y - 0.4, -0.6)
    for axis, title in zip(axes, ("GA: global model, %", "PA: personal models, %"), strict=True):
        axis.set_title(title, loc="left")
        axis.grid(axis="x", color="#e6e6e6")
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    marks, names = axes[0].get_legend_handles_labels()
    each = dict(zip(names, marks, strict=True))
    figure.legend(each.values(), each.keys(), loc="outside upper right", ncols=3, frameon=False)
    save(figure, "measured.svg")


def save(figure: Figure, name: str) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, metadata={"Date": None})


if __name__ == "__main__":
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedgela", "font.size": 9}
    round_time()
    measured()
