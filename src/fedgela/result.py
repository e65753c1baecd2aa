"""The result of a run, as result.json has it: accuracies, the data they are of, and the machine."""

import os
import platform

import numpy as np
import torch

import fedgela
from fedgela.algorithms import name_of
from fedgela.evaluation import Record, best_and_last, client_accuracies, diverged
from fedgela.rounds import Progress
from fedgela.server import Server


def summarise(
    server: Server, progress: Progress, records: list[Record], finetuned: Record, seconds: float
) -> Record:
    """The result, from the records of all rounds and what was measured after the last (`finetuned`)."""
    e, algorithm = server.experiment, server.algorithm
    result: Record = {
        "algorithm": name_of(algorithm),
        "dataset": e.dataset,
        "data_fingerprint": server.federation.data.fingerprint,
        "partition": e.partition,
        "model": e.model,
        "clients": e.clients,
        "sample": e.sample,
        "rounds": e.rounds,
        "seed": e.seed,
        "unit": "percent",
        "measured_on": "validation data" if e.validation > 0 else "test data",
        "best_is": "the maximum over rounds, chosen on the data it is measured on"
        + ("; PA's is fine-tuned from the round of the best GA" if algorithm.PA_of == "finetuned" else ""),
        "GA_of": algorithm.GA_of,
        "PA_of": algorithm.PA_of,
    }
    for name in ("GA", "GA_balanced", "PA", "PA_balanced", "GA_locals", "local_accuracy"):
        summary = best_and_last(records, name)
        if summary is not None:
            result[name] = summary
    if algorithm.finetuned_as is not None:
        # fine-tuned from the global model of the best GA, and from the last
        best, last = finetuned["best"], finetuned["last"]
        for key in (algorithm.finetuned_as, f"{algorithm.finetuned_as}_balanced"):
            if None not in (best[key], last[key]):  # None where all sites of a federation had gone by then
                result[key] = {
                    "best": best[key],
                    "best_round": best["round"],
                    "last": last[key],
                    "last_round": last["round"],
                }
        result["finetuned"] = finetuned
    if not algorithm.pooled:
        totals = server.federation.test_counts
        result["local_accuracy_by_client"] = client_accuracies(progress.right, totals)
    result["shares"] = algorithm.shares()
    lost = [record["round"] for record in records if diverged(record)]
    result["diverged_round"] = lost[0] if lost else None  # the first whose loss is no finite number
    result["wall_seconds"] = round(seconds, 3)
    result["device"] = device_name(torch.device(e.device))
    result["threads"] = e.threads
    result["versions"] = {
        "fedgela": fedgela.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return result


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {os.cpu_count()} cores)"
