"""An inspection for programs."""

import json
from dataclasses import asdict
from typing import Any

from fedgela.evaluation import finite
from fedgela.inspection import Inspection


def to_json(found: Inspection) -> str:
    """Everything, with one line a client."""
    e = found.experiment
    value: dict[str, Any] = {
        "dataset": found.name,
        "kind": found.data.kind,
        "partition": e.partition,
        "partition_seed": e.partition_seed,
        "validation": e.validation,
        "batch_size": e.batch_size,
        "sample": e.sample,
        "class_names": found.class_names,
        "training_samples": int(found.samples.sum()),
        "test_samples": int(found.test_samples.sum()),
        "missing_cells": found.missing_cells,
        "missing_cells_of_training_clients_and_held_classes": found.disjoint_cells,
        "class_imbalance": found.class_imbalance,
        "median_imbalance": found.median_imbalance,
        "clients_too_small_for_a_batch": int(found.too_small.sum()),
        "classes_only_in_test": found.federation.only_in_test,
        "classes_never_tested": found.federation.never_tested,
        "classes_nowhere": found.federation.nowhere,
        "cells_tested_without_training": found.tested_unseen,
        "round_misses_class": found.round_misses_class,
        "groups": found.data.groups[0],
        "groups_in_training_and_test": found.data.groups[1],
        "duplicates": asdict(found.duplicates),
        "phi": found.method.phi,
        "E_W": found.method.E_W,
        "W_norm": finite(found.W_norm),
        "advice": asdict(found.advice),
    }
    clients = [
        json.dumps(
            {
                "client": k,
                "name": found.client_names[k] if found.client_names else None,
                "samples": int(found.samples[k]),
                "classes": int(found.held[k]),
                "missing": float(found.missing[k]),
                "imbalance": finite(found.imbalance[k]),
                "too_small": bool(found.too_small[k]),
                "test_samples": int(found.test_samples[k]),
                "cost": finite(found.cost[k]),
                "train_counts": found.train_counts[k].tolist(),
                "test_counts": found.test_counts[k].tolist(),
            },
            allow_nan=False,
        )
        for k in range(found.clients)
    ]
    head = json.dumps(value, indent=2, allow_nan=False).removesuffix("\n}")
    return head + ',\n  "clients": [\n    ' + ",\n    ".join(clients) + "\n  ]\n}\n"
