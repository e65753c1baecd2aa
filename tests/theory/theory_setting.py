"""Sizes with which a federated check takes a moment."""

from fedgela.theory.convergence import Setting

SMALL = Setting(p=6, rounds=12, repeats=2)
