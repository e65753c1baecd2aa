"""Several methods on the same federation, seeds and initial weights, in one folder.

OUT/METHOD/seed-0/    one run each
OUT/asked.json        which runs there will be
OUT/table.json .csv .md .txt
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgela.algorithms import ALGORITHMS
from fedgela.config import READING, SPLITTING, Experiment, comparable, parse_experiment
from fedgela.errors import UserError, did_you_mean, first_line
from fedgela.failures import keep_failure
from fedgela.files import write_json
from fedgela.imports import is_import_path
from fedgela.listener import Listener
from fedgela.own_code import check_own_code
from fedgela.resolve import data_read_once, resolve
from fedgela.runfolder import ASKED, RESULT, TABLE, RunFolder, refuse_other_kinds
from fedgela.runs import HARDWARE, already_holds_a_run, check_same, is_of, run_or_resume
from fedgela.seeds import holds_seeds
from fedgela.server import Server
from fedgela.tables import Comparison, Row

# what makes the federation, which all methods of a comparison share; augmentation may be a method's own
FEDERATION = {*READING, *SPLITTING, "seed"} - {"augment"}
Settings = dict[str, Any]


def experiments_of(table: Mapping[str, Any], names: Sequence[str], where: str) -> dict[str, Experiment]:
    """One experiment for each method, by name. A config's [methods.NAME] tables hold the methods' own
    settings; NAME can be anything where the table has a `name`, so that one method can be compared twice."""
    shared = {key: value for key, value in table.items() if key not in ("methods", "algorithm")}
    methods = table.get("methods", {})
    if not isinstance(methods, dict) or not all(isinstance(m, dict) for m in methods.values()):
        raise UserError(f"{where}: methods must be tables, as in [methods.fedgela]")
    if "methods" in table and not methods:
        raise UserError(f"{where}: there is no method under [methods]")
    if not names:
        names = list(methods) or list(ALGORITHMS)
    if "all" in names:
        names = list(dict.fromkeys([*ALGORITHMS, *methods, *(name for name in names if name != "all")]))
    _check_tables(methods, names, where)
    methods = _with_algorithm_table(methods, table.get("algorithm"), names, where)
    experiments: dict[str, Experiment] = {}
    for path in names:
        name = _called(path)
        if name in experiments:
            raise UserError(f"{where}: two methods are called {name!r}: give them tables [methods.NAME]")
        if not re.fullmatch(r"[\w.+=-]+", name) or name.startswith("."):
            raise UserError(
                f"{where}: {name!r} cannot be a method's name, since it names a folder: "
                "letters, digits and _ . + = - only"
            )
        if path == name and name not in methods and name not in ALGORITHMS:
            known = [*ALGORITHMS, *methods]
            raise UserError(
                f"algorithms: there is no method {name!r}{did_you_mean(name, known)}; "
                f"there are {', '.join(known)}"
            )
        own = {"name": path, **methods.get(path, methods.get(name, {}))}
        place = f"{where}: [methods.{name}]" if name in methods else where
        experiments[name] = _experiment_of(own, shared, place)
    return experiments


def _experiment_of(own: Mapping[str, Any], shared: Mapping[str, Any], place: str) -> Experiment:
    """One method's experiment, from its own settings and those that all methods share."""
    # a setting that is a key of the experiment, such as the method's own lr, is no hyper-parameter
    keys = Experiment.model_fields.keys() - {"algorithm"}
    for_run = {key: value for key, value in own.items() if key in keys}
    algorithm = {key: value for key, value in own.items() if key not in keys}
    experiment = parse_experiment({**shared, **for_run, "algorithm": algorithm}, place)
    for key in FEDERATION & for_run.keys():
        if for_run[key] != shared.get(key):
            raise UserError(
                f"{place}: methods share one federation: {key} is set once for all, above the tables"
            )
    if experiment.min_samples is None and "batch_size" in for_run:
        # a client has a batch at least, but a method's own batch does not change who has what
        common = shared.get("batch_size", Experiment.model_fields["batch_size"].default)
        return experiment.with_(min_samples=common)
    return experiment


def _called(path: str) -> str:
    """A user's own method goes by its class's name, since an import path names no folder."""
    return path.rpartition(":")[2] if is_import_path(path) else path


def _check_tables(methods: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """A UserError where a table has no `name`, and there is no method of the table's own name."""
    known = [*ALGORITHMS, *(_called(path) for path in names if is_import_path(path))]
    for name, own in methods.items():
        if "name" not in own and name not in known and not is_import_path(name):
            raise UserError(
                f"{where}: [methods.{name}]: there is no method {name!r}{did_you_mean(name, known)}; "
                "a table with a name of its own says which method it is of: name = 'fedgela'"
            )


def _with_algorithm_table(
    methods: Mapping[str, Any], algorithm: object, names: Sequence[str], where: str
) -> dict[str, Any]:
    """The methods' tables, with the settings of an [algorithm] table (or --set algorithm.KEY) in the table of
    the method that they are for."""
    if not isinstance(algorithm, dict) or not algorithm.keys() - {"name"}:
        return dict(methods)
    if "name" not in algorithm and len(names) > 1:
        key = next(iter(algorithm))
        raise UserError(
            f"{where}: there are several methods here: instead of algorithm.{key} write methods.NAME.{key}, "
            f"NAME one of {', '.join(map(_called, names))}"
        )
    name = str(algorithm.get("name", names[0]))
    return {**methods, name: {**methods.get(name, {}), **algorithm}}


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
            held, result = folder.experiment(), folder.sound_result()
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
    """A UserError, before anything is written, where no method can run, or other runs are in the way."""
    errors = []
    for name, experiment in experiments.items():
        for seed in seeds:
            check_free(experiment.with_(seed=seed), folder_of(name, seed))
        try:
            Server(*resolve(experiment.with_(seed=seeds[0])))
        except UserError as error:
            errors.append(error)
    if len(errors) == len(experiments):
        raise errors[0]


def check_free(experiment: Experiment, folder: Path) -> None:
    """A UserError where the folder of this run holds another one."""
    held = RunFolder(folder)
    if held.exists():
        check_same(experiment, held)


@contextlib.contextmanager
def working_in(out: Path, kind: str) -> Iterator[None]:
    """Make a folder for several runs, whose common file is `kind`, and keep other processes out of it."""
    if RunFolder(out).exists() or holds_seeds(out):
        raise already_holds_a_run(out)
    refuse_other_kinds(out, kind)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made a folder ({error.strerror})") from None
    with RunFolder(out).locked():
        yield
