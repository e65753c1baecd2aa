"""Trained models in use: as one module from raw samples to probabilities, exported, and asked."""

from fedgela.deploy.model import Card, Model, load_model

__all__ = ["Card", "Model", "load_model"]
