"""Seconds that a round of a federation takes beyond its slowest site's training, for 2 and 4 sites.

    python results/federation_overhead.py results/federation_overhead.json

"stock" is a Flower app as its documentation writes them: a ClientApp that imports torch, reads its data and
trains, one message to train and one to evaluate, everything at Flower's defaults. "fedgela" is `fedgela
federation`, and "masked" the same with --secure-aggregation. All train the same net on digits, server and
sites as processes of their own on this machine, turn about.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgela.bench import machine
from fedgela.config import parse_experiment
from fedgela.flower import conducting
from fedgela.flower.demo import running, write_digits
from fedgela.flower.folder import init
from fedgela.flower.processes import environment, free_port, is_listening, program, stop
from fedgela.listener import Listener

ROUNDS, EPOCHS = 6, 2
FIRST = 2  # earlier rounds include what is loaded once

PYPROJECT = """[project]
name = "stock"
version = "1.0.0"
[tool.flwr.app]
publisher = "stock"
[tool.flwr.app.components]
serverapp = "stock.server:app"
clientapp = "stock.client:app"
[tool.flwr.app.config]
out = ""
sites = 0
"""

SERVER = f"""
import json, time
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

class Timed(FedAvg):
    '''Notes when a round begins and ends, and how long its slowest site trained.'''

    def configure_train(self, round, *args):
        self.began = time.monotonic()
        return super().configure_train(round, *args)

    def aggregate_train(self, round, replies):
        replies = list(replies)
        self.slowest = max(reply.content['metrics']['seconds'] for reply in replies)
        return super().aggregate_train(round, replies)

    def aggregate_evaluate(self, round, replies):
        result = super().aggregate_evaluate(round, replies)
        with open(self.out, 'a') as file:
            file.write(json.dumps([time.monotonic() - self.began, self.slowest]) + '\\n')
        return result

@app.main()
def main(grid: Grid, context: Context) -> None:
    from stock.task import net
    sites = int(context.run_config['sites'])
    strategy = Timed(min_train_nodes=sites, min_evaluate_nodes=sites, min_available_nodes=sites)
    strategy.out = context.run_config['out']
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds={ROUNDS})
"""

CLIENT = """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from stock.task import accuracy, data, net, train as train_net

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content['arrays'].to_torch_state_dict())
    x, y = data(context.node_config['data'], 'train')
    seconds = train_net(model, x, y)
    metrics = MetricRecord({'num-examples': len(y), 'seconds': seconds})
    content = RecordDict({'arrays': ArrayRecord(model.state_dict()), 'metrics': metrics})
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content['arrays'].to_torch_state_dict())
    x, y = data(context.node_config['data'], 'test')
    metrics = MetricRecord({'num-examples': len(y), 'accuracy': accuracy(model, x, y)})
    return Message(RecordDict({'metrics': metrics}), reply_to=message)
"""

TASK = f"""
import time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

def net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 84), nn.Linear(84, 10))

def data(path, part):
    with np.load(path) as file:
        x = torch.from_numpy(file[f'x_{{part}}']).float()[:, None] / 8 - 1
        return x, torch.from_numpy(file[f'y_{{part}}']).long()

def train(model, x, y):
    torch.set_num_threads(1)
    began = time.monotonic()
    optimiser = torch.optim.SGD(model.parameters(), 0.02, 0.9, weight_decay=1e-4)
    for _ in range({EPOCHS}):
        for batch in torch.randperm(len(y)).split(20):
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return time.monotonic() - began

def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).double().mean().item()
"""


def digits(folder: Path, sites: int) -> dict[str, Path]:
    paths = {f"site-{k + 1}": folder / f"site-{k + 1}.npz" for k in range(sites)}
    for k, path in enumerate(paths.values()):
        write_digits(path, (2 * k, 2 * k + 1))
    write_digits(folder / "server.npz", tuple(range(10)))
    return paths


def stock(folder: Path, sites: int) -> list[tuple[float, float]]:
    """(a round's seconds, its slowest site's training) by round."""
    app = folder / "app"
    (app / "stock").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PYPROJECT)
    for name, text in {"__init__": "", "server": SERVER, "client": CLIENT, "task": TASK}.items():
        (app / "stock" / f"{name}.py").write_text(text)
    home, port, out = folder / "flwr", free_port(), folder / "rounds.jsonl"
    env = environment(home)
    del env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]  # Flower's default
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    processes: list[subprocess.Popen[bytes]] = []

    def launch(*command: str) -> None:
        with (folder / "flower.log").open("ab") as log:
            processes.append(
                subprocess.Popen(
                    [program(command[0]), *command[1:]],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    try:
        launch("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
        while not is_listening("127.0.0.1", port):
            time.sleep(0.2)
        for path in digits(folder, sites).values():
            launch("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port",
                   str(free_port()), "--node-config", f'data="{path}"')  # fmt: skip
        run = [program("flwr"), "run", str(app), "here", "-c", f'out="{out}" sites={sites}']
        subprocess.run(run, env=env, check=True, capture_output=True)
        end = time.monotonic() + 600
        while not out.exists() or len(out.read_text().splitlines()) < ROUNDS:
            if time.monotonic() > end:
                raise SystemExit(f"the stock app did not end:\n{(folder / 'flower.log').read_text()[-3000:]}")
            time.sleep(0.5)
    finally:
        for process in reversed(processes):
            stop(process)
    return [tuple(json.loads(line)) for line in out.read_text().splitlines()]


def ours(folder: Path, sites: int, **terms: bool) -> list[tuple[float, float]]:
    data = digits(folder, sites)
    federation = init(
        folder / "federation", list(data), "127.0.0.1", free_port(), [str(k) for k in range(10)]
    )
    table = {"rounds": ROUNDS, "epochs": EPOCHS, "batch_size": 20, "lr": 0.02, "algorithm": "fedgela"}
    with running(federation, data, lambda text: None):
        run = folder / "run"
        conducting.begin(
            federation, parse_experiment({**table, "device": "cpu"}), run, Listener(),
            test_data=str(folder / "server.npz"), min_sites=sites, **terms,
        )  # fmt: skip
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["seconds"], max(record["site_seconds"].values())) for record in records]


def masked(folder: Path, sites: int) -> list[tuple[float, float]]:
    return ours(folder, sites, secure_aggregation=True)


WAYS = {"stock": stock, "fedgela": ours, "masked": masked}


def measure(way: str, sites: int) -> list[float]:
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    try:
        rounds = WAYS[way](folder, sites)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    overhead = [whole - training for whole, training in rounds[FIRST - 1 :]]
    print(f"{way}, {sites} sites: {', '.join(f'{s:.1f}' for s in overhead)} s", flush=True)
    return overhead


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--sites", default="2,4")
    parser.add_argument("--repetitions", type=int, default=2)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for sites in map(int, options.sites.split(",")):
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.repetitions):
            for way in WAYS:
                seconds[way] += measure(way, sites)
        rows += [
            {"way": way, "sites": sites, "overhead": statistics.median(held), "rounds": held}
            for way, held in seconds.items()
        ]
    options.out.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
