"""How clients train locally. One interface, engines behind it."""

from fedgela.training.choice import choose, make_engine
from fedgela.training.eager import EagerEngine
from fedgela.training.interface import Engine, Job, Outcome, Plan, Question
from fedgela.training.lanes import LaneEngine
from fedgela.training.optimiser import Optimiser
from fedgela.training.workers import WorkerEngine

__all__ = [
    "EagerEngine",
    "Engine",
    "Job",
    "LaneEngine",
    "Optimiser",
    "Outcome",
    "Plan",
    "Question",
    "WorkerEngine",
    "choose",
    "make_engine",
]
