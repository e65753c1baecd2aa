"""Federated learning when clients hold only some of the classes (FedGELA, NeurIPS 2023)."""

__version__ = "0.1.0"
