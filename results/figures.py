"""Draw the docs' pictures from what was measured: docs/images/round-time.svg.

python results/figures.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

ROOT = Path(__file__).resolve().parent.parent
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
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedgela", "font.size": 9}
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
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    out = ROOT / "docs/images/round-time.svg"
    out.parent.mkdir(exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    round_time()
