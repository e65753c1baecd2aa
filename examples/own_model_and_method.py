"""A user's own net and method beside FedGELA, in one comparison: python examples/own_model_and_method.py OUT

The same from the command line, in this folder:

    fedgela compare --model own_nets:TinyNet --algorithms own_methods:SmoothedFedAvg,fedgela --out OUT
"""

import sys
from pathlib import Path

from own_methods import SmoothedFedAvg
from own_nets import TinyNet

from fedgela.algorithms import FedGELA
from fedgela.config import Experiment
from fedgela.runs import run_or_resume


def main(out: Path) -> None:
    for algorithm in (SmoothedFedAvg(smoothing=0.05), FedGELA()):
        experiment = Experiment(
            dataset="digits",
            partition="classes:3",
            clients=6,
            rounds=3,
            epochs=2,
            batch_size=20,
            model=f"{TinyNet.__module__}:{TinyNet.__name__}",
            algorithm=algorithm,
        )
        result = run_or_resume(experiment, out / algorithm.title)
        print(f"{algorithm.title:18s} GA {result['GA']['last']:.1f}  PA {result['PA']['last']:.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "own-runs"))
