"""Where a round's time goes: seconds by part of a round, and on a GPU kernel time by kind.

    python results/profile_round.py results/round_time.json [--device cuda] [--epochs 10]

measures and writes; docs/images/round-time.svg is drawn from the file by results/figures.py.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedgela.bench import machine
from fedgela.config import parse_experiment
from fedgela.resolve import resolve
from fedgela.server import Server

KINDS = {  # by what a kernel's name holds, the first that fits
    "convolutions": ("conv", "wgrad", "dgrad", "fprop", "_patches", "_unfolded", "_chunks", "nhwc"),
    "pooling": ("pool", "_largest"),
    "linear layers": ("gemm", "nvjet", "cutlass", "splitK", "cublas", "_linear"),
    "optimiser and copies to bf16": ("multi_tensor",),
    "gathering the batch": ("index", "gather"),
    "normalisation, activations, loss": (
        "triton_",
        "elementwise",
        "reduce",
        "softmax",
        "norm",
        "_cross_entropy",
        "_slopes_of_logits",
        "_record",
    ),
}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Watch:
    """Seconds spent in functions, the device waited for at their ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def over(
        self, name: str, function: Callable[..., Any], whole: Callable[[Any], Any]
    ) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            synchronize(self.device)
            began = time.perf_counter()
            result = whole(function(*arguments))
            synchronize(self.device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            return result

        return watched


def profile(model: str, device: str, epochs: int) -> dict[str, Any]:
    table = {
        "dataset": "cifar10",
        "partition": "dirichlet:0.1",
        "model": model,
        "algorithm": "fedavg",
        "device": device,
        "epochs": epochs,
        "rounds": 10**6,
    }
    server = Server(*resolve(parse_experiment(table)))
    progress = server.begin()
    server.step(progress)  # captures, and compiles
    watch = Watch(server.device)
    train, answers = server.engine.train, server.engine.answers
    server.engine.train = watch.over("training", train, lambda outcomes: iter(list(outcomes)))  # type: ignore[method-assign]
    server.engine.answers = watch.over("evaluation", answers, lambda answers: answers)  # type: ignore[method-assign]
    synchronize(server.device)
    began = time.perf_counter()
    server.step(progress)
    synchronize(server.device)
    whole = time.perf_counter() - began
    parts = watch.seconds | {"aggregation, angles and the rest": whole - sum(watch.seconds.values())}
    jobs = [server.job(progress, client) for client in server.select(progress.round)]
    plan = server.plan(progress)
    # one epoch's steps are like another's, and a profiler is slow with a million kernels
    plan = replace(plan, phases=tuple(replace(phase, epochs=1) for phase in plan.phases))
    kernels = _kernels(lambda: list(train(plan, jobs)))
    server.close()
    e = server.experiment
    return {
        "model": model,
        "machine": machine.describe(),
        "lanes": e.lanes,
        "width": e.width,
        "compile": e.compile,
        "precision": e.precision,
        "epochs": epochs,
        "seconds": parts,
        "kernel_microseconds": kernels if server.device.type == "cuda" else {},
    }


def _kernels(work: Callable[[], Any]) -> dict[str, float]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    if not torch.cuda.is_available():
        return {}
    with profiler(activities=[ProfilerActivity.CUDA]) as watched:
        work()
        torch.cuda.synchronize()
    kinds: dict[str, float] = {}
    for event in watched.key_averages():
        kind = next((k for k, parts in KINDS.items() if any(part in event.key for part in parts)), "other")
        kinds[kind] = kinds.get(kind, 0.0) + event.device_time_total
    return kinds


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--models", default="simple-cnn,resnet18")
    options = parser.parse_args()
    rows = [profile(model, options.device, options.epochs) for model in options.models.split(",")]
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
