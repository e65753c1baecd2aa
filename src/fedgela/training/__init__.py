"""How clients train locally. One interface, engines behind it."""

from fedgela.training.eager import EagerEngine
from fedgela.training.interface import Engine, Job, Outcome, Plan, Question
from fedgela.training.optimiser import Optimiser

__all__ = ["EagerEngine", "Engine", "Job", "Optimiser", "Outcome", "Plan", "Question"]
