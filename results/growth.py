"""How time and memory grow with the number of clients, ten of them sampled a round.

    python results/growth.py results/growth.json

Synthetic features, a hundred training samples a client; each size in a process of its own.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS = (100, 1_000, 10_000)
ROUNDS = 12


def write_data(path: Path, clients: int) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, each in (("train", 100), ("test", 20)):
        y = rng.integers(0, 10, clients * each)
        arrays[f"x_{part}"] = (rng.normal(size=(len(y), 32)) + 0.3 * y[:, None]).astype(np.float32)
        arrays[f"y_{part}"] = y
        arrays[f"client_{part}"] = np.repeat(np.arange(clients), each)
    np.savez(path, **arrays)


def measure(path: Path, clients: int, out: Path) -> dict[str, Any]:
    from fedgela.config import parse_experiment
    from fedgela.listener import Listener
    from fedgela.runs import run

    class Clock(Listener):
        """Seconds from one round's end to the next one's: checkpoints included."""

        def __init__(self) -> None:
            self.last = time.perf_counter()
            self.start = 0.0
            self.plain: list[float] = []
            self.evaluated: list[float] = []

        def started(self, experiment: Any, done: int) -> None:
            now = time.perf_counter()
            self.start, self.last = now - self.last, now

        def round(self, record: dict[str, Any]) -> None:
            now = time.perf_counter()
            (self.evaluated if "GA" in record else self.plain).append(now - self.last)
            self.last = now

    table = {
        "dataset": str(path),
        "partition": "natural",
        "sample": 10,
        "rounds": ROUNDS,
        "epochs": 2,
        "batch_size": 20,
        "eval_every": 4,
        "device": "cpu",
    }
    clock = Clock()
    run(parse_experiment(table), out, clock)
    return {
        "clients": clients,
        "samples": 100 * clients,
        "start_seconds": clock.start,
        "round_seconds": statistics.median(clock.plain),
        "evaluated_round_seconds": statistics.median(clock.evaluated),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


if __name__ == "__main__":
    if len(sys.argv) == 4:
        folder, clients = Path(sys.argv[2]), int(sys.argv[3])
        print(json.dumps(measure(folder / "data.npz", clients, folder / "run")))
    else:
        rows = []
        for clients in CLIENTS:
            with tempfile.TemporaryDirectory() as name:
                write_data(Path(name) / "data.npz", clients)
                command = [sys.executable, __file__, sys.argv[1], name, str(clients)]
                rows.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")
