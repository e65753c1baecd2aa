"""Several methods on the same federation, seeds and initial weights, in one folder.

OUT/METHOD/seed-0/    one run each
OUT/table.json .csv .md .txt
"""

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgela.algorithms import ALGORITHMS
from fedgela.config import Experiment, parse_experiment
from fedgela.errors import UserError, did_you_mean
from fedgela.files import write_atomically
from fedgela.progress import View
from fedgela.runs import run_or_resume
from fedgela.tables import Comparison, Row


def experiments_of(table: Mapping[str, Any], names: Sequence[str], where: str) -> dict[str, Experiment]:
    """An experiment a method. A config's [methods.NAME] tables hold the methods' own settings; NAME may
    be free where the table has a `name`, so that one method can stand in a table twice."""
    shared = {key: value for key, value in table.items() if key not in ("methods", "algorithm")}
    methods = table.get("methods", {})
    if not isinstance(methods, dict) or not all(isinstance(m, dict) for m in methods.values()):
        raise UserError(f"{where}: methods must be tables, as in [methods.fedgela]")
    if not names:
        names = list(methods) or list(ALGORITHMS)
    elif list(names) == ["all"]:
        names = list(dict.fromkeys([*ALGORITHMS, *methods]))
    experiments = {}
    for name in names:
        if not re.fullmatch(r"[\w.+=-]+", name) or name.startswith("."):
            raise UserError(f"{where}: {name!r} cannot be a method's name: it names a folder")
        if name not in methods and name not in ALGORITHMS:
            known = [*ALGORITHMS, *methods]
            raise UserError(
                f"algorithms: there is no method {name!r}{did_you_mean(name, known)}; "
                f"there are {', '.join(known)}"
            )
        own = {"name": name, **methods.get(name, {})}
        # what is no hyper-parameter of the method is a key of the experiment, such as its own lr
        for_run = {key: own.pop(key) for key in list(own) if key in Experiment.model_fields}
        experiments[name] = parse_experiment({**shared, **for_run, "algorithm": own}, where)
    return experiments


def compare(experiments: Mapping[str, Experiment], seeds: Sequence[int], out: Path, view: View) -> Comparison:
    """Run what is missing, and write the table after every run.

    A run that fails leaves the others' results in place, and its error in the table.
    """
    rows = {name: Row(name) for name in experiments}
    for seed in seeds:  # seed by seed: a comparison cut short is still a fair one
        for name, experiment in experiments.items():
            view.label = f"{name} seed {seed}" if len(seeds) > 1 else name
            folder = out / name / f"seed-{seed}"
            error_file = folder / "error.txt"
            try:
                rows[name].results[seed] = run_or_resume(experiment.with_(seed=seed), folder, view)
            except Exception as error:
                text = str(error) or type(error).__name__
                rows[name].errors[seed] = text.splitlines()[0]
                view.note(f"failed: {text}")
                if not isinstance(error, UserError):
                    folder.mkdir(parents=True, exist_ok=True)
                    write_atomically(error_file, traceback.format_exc())
            else:
                error_file.unlink(missing_ok=True)
            out.mkdir(parents=True, exist_ok=True)
            Comparison(list(rows.values())).save(out)
    view.label = ""
    return Comparison(list(rows.values()))
