"""The paper's tables and figures as data: its numbers as printed, and the experiments behind them."""

from fedgela.paper.cells import BEST_BASELINE, Cell, Summary, experiment_of
from fedgela.paper.files import TABLES, Table, common, table
from fedgela.paper.numbers import Printed
from fedgela.paper.registry import cells, distinct, find_cell, same_run, summaries

__all__ = [
    "BEST_BASELINE",
    "TABLES",
    "Cell",
    "Printed",
    "Summary",
    "Table",
    "cells",
    "common",
    "distinct",
    "experiment_of",
    "find_cell",
    "same_run",
    "summaries",
    "table",
]
