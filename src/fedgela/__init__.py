"""Federated learning when clients hold only some of the classes (FedGELA, NeurIPS 2023)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedgela.config import Experiment as Experiment
    from fedgela.deploy import load_model as load_model
    from fedgela.errors import UserError as UserError
    from fedgela.inspection import inspect as inspect
    from fedgela.listener import Listener as Listener
    from fedgela.runs import resume as resume
    from fedgela.runs import run as run
    from fedgela.seeds import resume_seeds as resume_seeds
    from fedgela.seeds import run_seeds as run_seeds

__version__ = "0.1.0"

# what most programs need, imported when first used: PyTorch takes seconds, and the command line often none
_FRONT = {
    "Experiment": "fedgela.config",
    "Listener": "fedgela.listener",
    "UserError": "fedgela.errors",
    "inspect": "fedgela.inspection",
    "load_model": "fedgela.deploy",
    "resume": "fedgela.runs",
    "resume_seeds": "fedgela.seeds",
    "run": "fedgela.runs",
    "run_seeds": "fedgela.seeds",
}
__all__ = ["__version__", *_FRONT]


def __getattr__(name: str) -> object:
    if name not in _FRONT:
        raise AttributeError(f"module 'fedgela' has no attribute {name!r}")
    return getattr(import_module(_FRONT[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FRONT})
