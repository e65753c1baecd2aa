"""Several methods on the same federation, seeds and initial weights, in one folder.

OUT/METHOD/seed-0/    one run each
OUT/asked.json        which runs there will be
OUT/table.json .csv .md .txt
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgela.config import Experiment, comparable
from fedgela.errors import UserError, first_line
from fedgela.failures import keep_failure
from fedgela.files import write_json
from fedgela.listener import Listener
from fedgela.methods import FEDERATION
from fedgela.own_code import check_own_code
from fedgela.resolve import data_read_once, resolve
from fedgela.runfolder import ASKED, RESULT, TABLE, RunFolder
from fedgela.runs import HARDWARE, check_same, check_vacant, is_of, run_or_resume
from fedgela.seeds import check_seeds
from fedgela.server import Server
from fedgela.tables import Comparison, Row

Settings = dict[str, Any]


@data_read_once()
def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: str | Path,
    listener: Listener | None = None,
) -> Comparison:
    """Run what is missing, and write the table after every run.

    A run that fails leaves the others' results in place, and its error in the table.
    """
    out, listener = Path(out), listener or Listener()
    check_possible(experiments, seeds, lambda name, seed: out / name / f"seed-{seed}")
    with working_in(out, TABLE):
        write_json(out / ASKED, [f"{name}/seed-{seed}" for seed in seeds for name in experiments])
        rows, settings = _earlier(experiments, seeds, out, listener)
        rows |= {name: Row(name) for name in experiments}
        differing = _differing(settings | {name: _settings(e) for name, e in experiments.items()})
        for seed in seeds:  # seed by seed: a comparison cut short is still a fair one
            for name, experiment in experiments.items():
                listener.label = f"{name} seed {seed}" if len(seeds) > 1 else name
                _run_one(experiment.with_(seed=seed), out / name / f"seed-{seed}", rows[name], listener)
                listener.advance()
                Comparison(list(rows.values()), differing).save(out)
        listener.label = ""
        return Comparison(list(rows.values()), differing)


def _earlier(
    experiments: Mapping[str, Experiment], seeds: Sequence[int], out: Path, listener: Listener
) -> tuple[dict[str, Row], dict[str, Settings]]:
    """Finished runs of other methods in this folder, to be shown in the same table: those with the same
    federation, model and rounds. And their settings, as a user would have asked for them."""
    rows: dict[str, Row] = {}
    settings: dict[str, Settings] = {}
    asked = next(iter(experiments.values()))
    filled = resolve(asked)[0]
    wanted = comparable(filled)
    for path in sorted(out.glob(f"*/seed-*/{RESULT}")):
        folder, name = RunFolder(path.parent), path.parent.parent.name
        if name in experiments:
            continue
        try:
            held, result = folder.experiment(), folder.result()
            check_own_code(folder.path, held)
        except UserError as error:
            listener.note(f"{first_line(error)}; it is left out of the table")
            continue
        same_split = held.partition_seed == (
            held.seed if asked.partition_seed is None else asked.partition_seed
        )
        found = comparable(held)
        other = sorted(key for key in wanted if found.get(key) != wanted[key])
        if not same_split or other:
            keys = ", ".join(other or ["partition_seed"])
            listener.note(f"{path.parent}: has another {keys}, and is left out of the table")
        elif held.seed not in seeds or result is None:
            continue
        elif not is_of(result, resolve(asked.with_(seed=held.seed))[1]):
            listener.note(f"{path.parent}: is of other data of the same name, and is left out of the table")
        else:
            rows.setdefault(name, Row(name)).results[held.seed] = result
            settings[name] = _settings(held)
            for key, value in _settings(filled).items():
                # the same when filled in, or chosen when the run began: shown as it was asked for
                if value in (None, settings[name][key]):
                    settings[name][key] = getattr(asked, key)
    return rows, settings


def _settings(experiment: Experiment) -> Settings:
    """The values of the keys that a method may set for itself, and that decide its result."""
    shared = {"algorithm", "track", *FEDERATION, *HARDWARE}
    return {key: getattr(experiment, key) for key in Experiment.model_fields if key not in shared}


def _differing(settings: Mapping[str, Settings]) -> dict[str, dict[str, str]]:
    """The keys in which the methods of a table differ, with each one's value: {"lr": {"fedavg": "0.04"}}."""
    values = {
        key: {name: "default" if own[key] is None else str(own[key]) for name, own in settings.items()}
        for key in next(iter(settings.values()))
    }
    return {key: of_methods for key, of_methods in values.items() if len(set(of_methods.values())) > 1}


def _run_one(experiment: Experiment, folder: Path, row: Row, listener: Listener) -> None:
    try:
        row.results[experiment.seed] = run_or_resume(experiment, folder, listener)
    except Exception as error:
        row.errors[experiment.seed] = keep_failure(error, folder, listener.note)


def check_possible(
    experiments: Mapping[str, Experiment], seeds: Sequence[int], folder_of: Callable[[str, int], Path]
) -> None:
    """A UserError, before anything is written, where no method can run, other runs are in the way, or methods
    (from Python, where each is an experiment of its own) do not have the same federation."""
    check_seeds(seeds)
    if not experiments:
        raise UserError("a comparison has one method at least")
    errors = []
    federations: dict[str, Settings] = {}
    for name, experiment in experiments.items():
        for seed in seeds:
            check_free(experiment.with_(seed=seed), folder_of(name, seed))
        try:
            resolved, federation = resolve(experiment.with_(seed=seeds[0]))
            Server(resolved, federation)
        except UserError as error:
            errors.append(error)
        else:
            federations[name] = _federation_of(resolved) | {"partition_seed": experiment.partition_seed}
    if len(errors) == len(experiments):
        raise errors[0]
    (first, common), *others = federations.items()
    for (name, own), key in itertools.product(others, sorted(FEDERATION)):
        if own.get(key) != common.get(key):
            what = "min_samples (unless set, batch_size)" if key == "min_samples" else key
            raise UserError(
                f"{name}: methods share one federation, but its {what} is {own.get(key)!r}, and that of "
                f"{first} {common.get(key)!r}"
            )


def _federation_of(resolved: Experiment) -> Settings:
    """The values that decide who holds what."""
    held = {key: getattr(resolved, key) for key in FEDERATION - {"seed"}}
    if not (resolved.partition or "").startswith(("dirichlet", "iid")):
        del held["min_samples"]  # which only these heed
    return held


def check_free(experiment: Experiment, folder: Path) -> None:
    """A UserError where the folder of this run holds another one."""
    held = RunFolder(folder)
    if held.exists():
        check_same(experiment, held)


@contextlib.contextmanager
def working_in(out: Path, kind: str) -> Iterator[None]:
    """Make a folder for several runs, whose common file is `kind`, and keep other processes out of it."""
    check_vacant(out, kind)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made a folder ({error.strerror})") from None
    with RunFolder(out).locked():
        yield
