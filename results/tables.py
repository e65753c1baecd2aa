#!/usr/bin/env python3
"""Write the tables of README.md and docs/*.md between their markers, from results/ and the paper's tables as
data. Nothing is typed by hand.

python results/tables.py            # rewrites them

A table stands between <!-- table: NAME ARGUMENTS --> and <!-- end -->; TABLES says what makes it.
"""

import inspect
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ledger_tables as of_the_ledger
import paper_tables as of_the_paper
import sweep_tables as of_sweeps

from fedgela.config import Experiment
from fedgela.grids import Grid

ROOT = Path(__file__).resolve().parent.parent


def demo() -> str:
    return f"```\n{(ROOT / 'results/demo.txt').read_text().rstrip()}\n```"


def keys() -> str:
    """Every key of an experiment with its default, and with the comment that the source has beside it."""
    source = Path(inspect.getfile(Experiment)).read_text()
    rows = []
    for name, field in Experiment.model_fields.items():
        definition = re.search(rf"^    {name}: (?:.*\n(?!    \w+:|\n))*.*", source, re.MULTILINE)
        found = re.search(r"  # (.*)", definition[0]) if definition else None
        note = found[1].replace("None: ", "") if found else ""  # TOML has no None: the key is left out
        default = "fedgela" if name == "algorithm" else field.default
        value = default if isinstance(default, str) else json.dumps(default)  # as TOML has it
        rows.append([f"`{name}`", "–" if default is None else f"`{value}`", note])
    return Grid(["key", "default", "what it is"], rows).to_markdown()


# by the name in the marker; what follows the name there are the arguments
TABLES: dict[str, Callable[..., str]] = {
    "alignment": of_sweeps.alignment,
    "angles-by-round": of_sweeps.angles_by_round,
    "angles-measured": of_the_ledger.angles_measured,
    "averages": of_sweeps.averages,
    "bench": of_sweeps.bench,
    "broken-clients": of_sweeps.broken_clients,
    "burden": of_sweeps.burden,
    "cifar10-phi-even": partial(of_sweeps.single_runs, "cifar10-phi-even"),
    "cifar10-resnet18": partial(of_sweeps.single_runs, "cifar10-resnet18"),
    "cifar10-simple-cnn": partial(of_sweeps.single_runs, "cifar10-simple-cnn"),
    "class-means": of_the_ledger.class_means,
    "demo": demo,
    "digits-20-rounds": partial(of_sweeps.best_settings, "digits-20-rounds", top=2),
    "digits-demo": partial(of_sweeps.best_settings, "digits-demo-first", "digits-demo-second", top=3),
    "digits-options": of_sweeps.options,
    "federation-overhead": of_sweeps.federation_overhead,
    "fedgen-digits": of_sweeps.by_strength,
    "growth": of_sweeps.growth,
    "keys": keys,
    "learned-length": of_sweeps.learned_length,
    "length-and-form": of_sweeps.length_and_form,
    "many-classes": of_sweeps.many_classes,
    "measured": of_the_ledger.measured,
    "paper-choices": of_the_paper.choices,
    "paper-contents": of_the_paper.contents,
    "paper-contradictions": of_the_paper.contradictions,
    "phi-forms": of_sweeps.phi_forms,
    "phi-measured": of_the_ledger.phi_measured,
    "precision": of_sweeps.precision,
    "prior": of_sweeps.prior,
    "prior-rounds": of_sweeps.prior_rounds,
    "resnet-measured": of_the_ledger.resnet_measured,
    "tuned": of_sweeps.tuned,
    "two-classes": of_sweeps.two_classes,
    "two-classes-apart": of_sweeps.two_classes_apart,
    "uneven": of_sweeps.uneven,
}
MARKED = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def rendered(text: str) -> str:
    """A page with the tables between its markers written anew."""

    def table(match: re.Match[str]) -> str:
        name, *arguments = match[1].split()
        return f"<!-- table: {match[1]} -->\n{TABLES[name](*arguments)}\n<!-- end -->"

    return MARKED.sub(table, text)


def pages() -> list[Path]:
    return sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


def main() -> None:
    for path in pages():
        text = path.read_text()
        new = rendered(text)
        if new != text:
            path.write_text(new)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
