"""One experiment on several seeds: a run each in DIR/seed-S, and their mean and spread in DIR/result.json."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from fedgela.config import Experiment, parse_experiment, plain_table
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.files import write_atomically, write_json
from fedgela.listener import Listener
from fedgela.resolve import data_read_once, located, resolve
from fedgela.runfolder import RESULT, SEEDS, RunFolder
from fedgela.runs import check_vacant, resume, run_or_resume
from fedgela.server import Server
from fedgela.tables import summary_of_seeds


@data_read_once()
def run_seeds(
    experiment: Experiment, seeds: Sequence[int], path: str | Path, listener: Listener | None = None
) -> Record:
    """Run an experiment on every seed, in a new folder, and return their summary."""
    path = Path(path)
    check_seeds(seeds)
    check_vacant(path)
    for seed in seeds:  # before anything is written: one of them may be impossible
        Server(*resolve(experiment.with_(seed=seed)))
    path.mkdir(parents=True, exist_ok=True)
    table = {"seeds": list(seeds), "experiment": plain_table(located(experiment))}
    write_atomically(path / SEEDS, tomli_w.dumps(table))
    return resume_seeds(path, listener)


def check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"seeds: {list(seeds)} must be different numbers from 0 on, one at least")


def holds_seeds(path: Path) -> bool:
    return (path / SEEDS).exists()


@data_read_once()
def resume_seeds(
    path: str | Path, listener: Listener | None = None, tensorboard: bool | None = None
) -> Record:
    """Run or continue every seed's run, except those that are finished, and return the summary.

    Where all are finished, a changed source of the user's own code is only noted, as for a single run; where
    some are not, it is an error.
    """
    path, listener = Path(path), listener or Listener()
    try:
        table = tomllib.loads((path / SEEDS).read_text())
        seeds, experiment = table["seeds"], parse_experiment(table["experiment"], str(path / SEEDS))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path / SEEDS}: cannot be read ({error})") from None
    if tensorboard is not None:
        experiment = experiment.with_(tensorboard=tensorboard)
    results: dict[int, Record] = {}
    all_finished = all(_is_finished(RunFolder(path / f"seed-{seed}")) for seed in seeds)
    for seed in seeds:
        listener.label, folder = f"seed {seed}", path / f"seed-{seed}"
        if all_finished:
            results[seed] = resume(folder, listener, tensorboard)
        else:
            results[seed] = run_or_resume(experiment.with_(seed=seed), folder, listener)
        listener.advance()
    summary = summary_of_seeds(results)
    write_json(path / RESULT, summary)
    return summary


def _is_finished(folder: RunFolder) -> bool:
    return folder.exists() and folder.result() is not None
