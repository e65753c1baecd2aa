"""Trained models in use: as one module from raw samples to probabilities, exported, and asked."""

from fedgela.deploy.card import Card
from fedgela.deploy.model import Model, load_model

__all__ = ["Card", "Model", "load_model"]
