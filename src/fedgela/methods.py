"""Commands on several methods: from one config, with a table for each method, to one experiment for each."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedgela.algorithms import ALGORITHMS
from fedgela.config import READING, SPLITTING, Experiment, parse_experiment
from fedgela.errors import UserError, did_you_mean
from fedgela.imports import is_import_path

# what makes the federation, which all methods of a comparison share; augmentation may be a method's own
FEDERATION = {*READING, *SPLITTING, "seed"} - {"augment"}


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
