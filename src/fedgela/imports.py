"""Importing a user's own code by import path, `my_package.nets:TinyNet`; and packages that may be missing."""

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path

from fedgela.errors import UserError, did_you_mean


def is_import_path(name: str) -> bool:
    """Whether a name reads as `package.module:Name`."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def require_matplotlib(why: str) -> None:
    """A UserError where matplotlib is missing, before the work is done and not after."""
    try:
        found = importlib.util.find_spec("matplotlib") is not None
    except ValueError:  # a module that is blocked
        found = False
    if not found:
        raise UserError(f"{why}, which needs matplotlib: pip install 'fedgela[report]'")


def import_path(thing: type) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def load(path: str) -> object:
    """The thing at an import path; the current folder is importable, as it is for `python -m`."""
    if not is_import_path(path):
        raise UserError(f"{path!r} is no import path such as my_package.my_module:MyName")
    module_name, _, attributes = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        thing: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # the module exists, but one that it imports does not
            raise _broken(path, module_name, error) from None
        raise UserError(
            f"{path}: there is no module {error.name!r}, neither in {here} nor where Python looks"
        ) from None
    except Exception as error:  # whatever a user's own code may raise
        raise _broken(path, module_name, error) from None
    for attribute in attributes.split("."):
        if not hasattr(thing, attribute):
            there = [name for name in vars(thing) if not name.startswith("_")]
            raise UserError(
                f"{path}: {module_name} has no {attribute!r}{did_you_mean(attribute, there)}"
            ) from None
        thing = getattr(thing, attribute)
    return thing


def _broken(path: str, module: str, error: Exception) -> UserError:
    return UserError(f"{path}: {module} cannot be imported: {told(error)}")


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to Python, an installed package or this one, and not to the user."""
    if file.startswith("<"):  # <frozen importlib._bootstrap>
        return True
    folders = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    return any(Path(file).is_relative_to(folder) for folder in (*folders, Path(__file__).parent))


def is_ours(thing: object) -> bool:
    """Whether the thing's class is one of this package."""
    return type(thing).__module__.startswith("fedgela.")


def told(error: Exception) -> str:
    """An exception of a user's own code in one line, with the place in that code."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{kind}: {text}"  # its text names file and line
    places = traceback.extract_tb(error.__traceback__)
    own = [place for place in places if not is_installed(place.filename)]
    place = (own or places)[-1]  # the last line of the user's own, not one of a library that it calls
    return f"{kind}: {text} ({place.filename}, line {place.lineno})"
