"""The paper's lemmas and theorems, measured against what they predict.

`layer_peeled` and `structure` are the layer-peeled model, `problem`, `bounds` and `convergence` the federated
problem with known constants, `defects` what does not hold, `report` and `figures` what a reader sees.
"""

from fedgela.theory.checks import PARTS, Report, run

__all__ = ["PARTS", "Report", "run"]
