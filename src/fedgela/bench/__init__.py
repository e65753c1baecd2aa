"""Samples a second of this engine beside the plain loop and the peers that are installed, in one run.

workloads: what is trained. contender: what is measured, one file each (plain, own, flower, pfl, fluke).
stage: a process a contender. measure: the rounds, alternating. rows: figures, table, JSON.
"""

from fedgela.bench.contender import ENGINES
from fedgela.bench.measure import Options, run
from fedgela.bench.rows import Row, to_json, to_text
from fedgela.bench.workloads import WORKLOADS

__all__ = ["ENGINES", "WORKLOADS", "Options", "Row", "run", "to_json", "to_text"]
