"""How well clients' features point along their class's vector, by how common the class is on the client.

    python results/alignment.py results/alignment.json

The global classifier has all vectors at one length, so that GA needs features along them. Digits, with the
base settings of results/sweeps/digits-options.json; local models of the last round, on what they trained on.
"""

import itertools
import sys
from typing import Any

import torch
from sweep import Sweep, trained
from torch.nn.functional import cosine_similarity

from fedgela.checkpoints import FolderStore
from fedgela.nets import empty_net
from fedgela.runfolder import RunFolder
from fedgela.saved.federation import federation_of
from fedgela.saved.runs import Run

BASE = {"dataset": "digits", "validation": 0.2, "rounds": 10, "epochs": 5, "batch_size": 20, "lr": 0.03}
METHODS: dict[str, dict[str, Any]] = {
    "FedGE: all at one length": {"name": "fedge"},
    "phi = even": {"name": "fedgela", "phi": "even"},
    "phi = power:0.5": {"name": "fedgela", "phi": "power:0.5"},
    "phi = power:1, the paper's": {"name": "fedgela"},
}
SEEDS = range(103, 108)
EDGES = (0, 0.02, 0.05, 0.2, 1)  # of x = n_kc / n_k


def measure(run: Run) -> dict[str, Any]:
    """GA, and the sum of cosines and the number of samples in each range of x."""
    folder = RunFolder(run.path)
    checkpoint = folder.checkpoints.newest()
    assert checkpoint is not None
    federation = federation_of(run.experiment)
    data, net = federation.data, empty_net(run.experiment, federation.data)
    store = FolderStore(folder.clients, checkpoint.clients)
    x, cosines = [], []
    for k in range(federation.clients):
        model = store.get(k)
        assert model is not None, "all clients train in every round"
        net.load_state_dict(model)
        own = (federation.train.owner == k).nonzero().flatten()
        y = data.y_train[own]
        with torch.no_grad():
            z = net.features(data.inputs(data.x_train[own]))
        W = run.experiment.algorithm.classifier(model, {})
        cosines.append(cosine_similarity(z, W[y]))
        n = federation.train_counts[k]
        x.append((n / n.sum())[y])
    which = torch.bucketize(torch.cat(x), torch.tensor(EDGES)) - 1
    samples = torch.bincount(which, minlength=len(EDGES) - 1)
    sums = torch.bincount(which, torch.cat(cosines), minlength=len(EDGES) - 1)
    return {"GA": run.records[-1]["GA"], "samples": samples.tolist(), "cosine_sums": sums.tolist()}


def main() -> None:
    sweep = Sweep(sys.argv[1], edges=EDGES)
    for partition, label, seed in itertools.product(("dirichlet:0.1", "classes:2"), METHODS, SEEDS):
        row = {"partition": partition, "method": label, "seed": seed}
        if not sweep.has(row):
            table = {**BASE, "partition": partition, "seed": seed, "algorithm": METHODS[label] | {"E_W": 3.0}}
            with trained(table) as run:
                sweep.add(row | measure(run))


if __name__ == "__main__":
    main()
