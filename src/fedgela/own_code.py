"""Checksums of the source of a user's own method and net, kept with a run: after an edit the run is neither
resumed nor taken for one of the new source.

They cover the modules that a config names and those of the classes that its method and net derive from, but
not what these modules import.
"""

import contextlib
import json
import sys
from pathlib import Path

from fedgela.algorithms import name_of
from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.files import checksum
from fedgela.imports import is_import_path, is_installed, load
from fedgela.models.hub import is_hub_model

OWN_CODE = "own_code.json"  # in the run's folder, if it has a method or net of the user's own


def own_code(experiment: Experiment) -> dict[str, str]:
    """Checksums of the user's own modules, by their names."""
    modules: set[str] = set()
    for name in (name_of(experiment.algorithm), experiment.model or ""):
        if is_import_path(name) and not is_hub_model(name):
            modules.add(name.partition(":")[0])
            modules |= {kind.__module__ for kind in getattr(load(name), "__mro__", ())}
    found: dict[str, str] = {}
    for module in sorted(modules):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None and not is_installed(file):
            with contextlib.suppress(OSError):  # not a file of its own: a module in a zip archive
                found[module] = checksum(Path(file).read_bytes())
    return found


def changed_modules(folder: Path, experiment: Experiment) -> list[str]:
    """The user's modules whose source has changed since the run in this folder began. None have as far as is
    known where the run keeps no checksums, as one of an older version."""
    path = folder / OWN_CODE
    try:
        began = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it, and the run goes on") from None
    now = own_code(experiment)
    return [module for module in began if now.get(module) != began[module]]


def check_own_code(folder: Path, experiment: Experiment) -> None:
    changed = changed_modules(folder, experiment)
    if changed:
        raise UserError(
            f"{folder}: the source of {' and '.join(changed)} is not what it was when the run began; "
            f"run it into another folder, or delete {folder / OWN_CODE} to go on all the same"
        )
