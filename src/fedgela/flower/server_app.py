"""The ServerApp of a federation's run: who is there, what they have, and then the rounds of any run."""

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedgela.config import Experiment, parse_experiment, read_toml
from fedgela.data.dataset import mean_and_deviation
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.files import write_atomically, write_json
from fedgela.flower.exchange import Exchange
from fedgela.flower.federated_server import FederatedServer
from fedgela.flower.processes import die_with_parent
from fedgela.flower.server_data import federation_of_sites, server_data
from fedgela.flower.terms import AGREED, ALIVE, ASKED, ERROR, NOTES, STARTED, TERMS, Agreed, Terms
from fedgela.flower.wire import About, Groups, decode, encode
from fedgela.inputs import InputSpec
from fedgela.models import State, default_model, default_projection, resolved_model
from fedgela.resolve import device_of
from fedgela.runfolder import METRICS, FolderStore, RunFolder
from fedgela.runs import Listener, go_on

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    # without its SuperLink it can do nothing but try for minutes to reach it, and keep the folder locked; all
    # that it knows is in the last checkpoint
    die_with_parent(signal.SIGKILL)
    folder = RunFolder(Path(str(context.run_config["folder"])))
    try:
        with folder.locked():
            (folder.path / ALIVE).write_text(str(os.getpid()))
            conduct(folder, grid)
    except UserError as error:
        write_atomically(folder.path / ERROR, str(error))
        raise
    except BaseException as error:
        write_atomically(folder.path / ERROR, f"{type(error).__name__}: {error} (a bug: see superlink.log)")
        raise


class Written(Listener):
    """Notes in the run's folder, where the command that waits finds them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path / NOTES

    def started(self, experiment: Experiment, done: int) -> None:
        """From here on metrics only grow: rounds that no checkpoint has are cut off."""
        size = (self.folder.path / METRICS).stat().st_size
        write_json(self.folder.path / STARTED, {"done": done, "metrics_bytes": size})

    def note(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(text.split()) + "\n")

    def finishing(self) -> None:
        self.note("measuring the final models")


def conduct(folder: RunFolder, grid: Grid) -> Record:
    """A run, from where its folder has it, to its result."""
    asked = json.loads((folder.path / TERMS).read_text())
    nodes = {int(node): int(site) for node, site in asked["nodes"].items()}
    terms = Terms.of(asked["terms"])
    began = folder.exists()
    path = folder.path / ASKED
    experiment = folder.experiment() if began else parse_experiment(read_toml(path), str(path))
    check_possible(experiment)
    listener = Written(folder)
    exchange = Exchange(grid, nodes)
    gathering = Gathering(exchange, terms, experiment, asked["test_data"], listener.note)
    if began:
        gathering.recall(folder.path / AGREED)
    server = gathering.server()
    gathering.remember(folder.path / AGREED, server)
    store = FolderStore(folder.clients)
    checkpoint = None
    if began:
        checkpoint = folder.load(torch.device(server.experiment.device), listener.note)
    else:
        folder.create(server.experiment)
    with contextlib.closing(server):
        return go_on(folder, server, store, checkpoint, listener)


def check_possible(experiment: Experiment) -> None:
    if experiment.algorithm.pooled:
        raise UserError(f"{experiment.algorithm.title} pools all data in one place; sites keep theirs")
    if experiment.validation > 0:
        raise UserError("validation: sites hold their own test samples out; leave it at 0")
    if experiment.track:
        raise UserError(
            "track: shows all classes to every local model, but a site has its own only; leave it out"
        )


class Gathering:
    """What must be known of the sites before the first round."""

    def __init__(
        self,
        exchange: Exchange,
        terms: Terms,
        experiment: Experiment,
        test_data: str | None,
        note: Callable[[str], None],
    ) -> None:
        self.exchange, self.terms, self.experiment, self.note = exchange, terms, experiment, note
        self.test_data = test_data
        self.normalisation: State | None = None  # a resumed run's, whoever is there now

    def server(self) -> FederatedServer:
        if not self.terms.classes:
            self.terms = dataclasses.replace(self.terms, classes=self._classes())
        joined = self.gather("join")
        spec = self._spec(joined)
        e = self.experiment
        classes = len(self.terms.classes)
        resolved = e.with_(
            dataset="federation",  # no data of that name is ever looked for: it lies on the sites
            clients=len(self.terms.sites),
            sample=min(e.sample or len(self.terms.sites), len(self.terms.sites)),
            min_samples=0,
            model=resolved_model(e.model or default_model(spec)),
            projection=e.projection or default_projection(classes),
            partition="natural",
            partition_seed=e.seed if e.partition_seed is None else e.partition_seed,
            device=str(device_of(e.device)),
            checkpoint_every=1,
        )
        normalisation = (
            self._normalisation(joined, spec) if self.normalisation is None else self.normalisation
        )
        data = server_data(spec, self.terms.classes, normalisation, self.test_data, e.image_size)
        sizes, tested = torch.zeros(2, len(self.terms.sites), dtype=torch.int64)
        for site, (_, about) in joined.items():
            sizes[site], tested[site] = about["samples"], about["tested"]
        statistics = self._statistics(joined, sizes)
        return FederatedServer(
            resolved,
            federation_of_sites(data, sizes, tested),
            self.terms,
            self.exchange,
            statistics,
            normalisation,
            self.test_data is not None,
            self.note,
            joined,
            lambda sites: self.ask("join", sites)[0],
        )

    def remember(self, path: Path, server: FederatedServer) -> None:
        """What the run's sites agreed on, for when it is resumed."""
        Agreed(server.terms.classes, server.federation.data.spec, server.normalisation).write(path)

    def recall(self, path: Path) -> None:
        held = Agreed.read(path)
        self.terms = dataclasses.replace(self.terms, classes=held.classes)
        self.normalisation = held.normalisation

    def _classes(self) -> tuple[str, ...]:
        """The sites' class names together; numbers in the order of numbers."""
        names: set[str] = set()
        for _, about in self.gather("classes").values():
            names |= {str(name) for name in about["classes"]}
        if all(name.isdigit() for name in names):
            return tuple(str(c) for c in range(1 + max(int(name) for name in names)))
        return tuple(sorted(names))

    def gather(self, task: str) -> dict[int, tuple[Groups, About]]:
        """The answers of all sites, or of those that could be had in time. A site that was killed and comes
        back is asked again; one that refuses is not."""
        answers: dict[int, tuple[Groups, About]] = {}
        refused: dict[int, str] = {}
        everybody = set(range(len(self.terms.sites)))
        end, told = time.monotonic() + self.terms.wait_seconds, False
        while True:
            missing = everybody - answers.keys() - refused.keys()
            if here := sorted(missing & set(self.exchange.online())):
                new, refusals = self.ask(task, here)
                answers |= new
                refused |= refusals
                missing -= answers.keys() | refused.keys()
            if not missing or time.monotonic() > end:
                break
            if not told:
                self.note(f"waiting for {', '.join(self.terms.sites[site] for site in sorted(missing))}")
                told = True
            time.sleep(1.0)
        if len(answers) < self.terms.min_sites:
            why = "".join(f"; {self.terms.sites[site]}: {text}" for site, text in sorted(refused.items()))
            raise UserError(f"only {len(answers)} of at least {self.terms.min_sites} sites are there{why}")
        return dict(sorted(answers.items()))

    def ask(self, task: str, sites: Sequence[int]) -> tuple[dict[int, tuple[Groups, About]], dict[int, str]]:
        """Answers, and refusals, by site; who did not answer at all is in neither."""
        text = self.experiment.to_toml()
        questions = {site: encode({}, self.terms.question(task, site, text)) for site in sites}
        replies = self.exchange.ask(task, questions, self.terms.round_seconds)
        answers: dict[int, tuple[Groups, About]] = {}
        refused: dict[int, str] = {}
        for site, payload in sorted(replies.payloads.items()):
            try:
                groups, about = decode(payload)
            except ValueError as error:
                refused[site] = str(error)
                continue
            if "error" in about:
                refused[site] = str(about["error"])
            else:
                answers[site] = groups, about
        for site, fault in sorted((refused | replies.faults).items()):
            self.note(f"{self.terms.sites[site]}: {fault}")
        return answers, refused

    def _spec(self, joined: dict[int, tuple[Groups, About]]) -> InputSpec:
        specs = {
            site: InputSpec(about["kind"], tuple(about["shape"]), about["vocabulary"])
            for site, (_, about) in joined.items()
        }
        first = min(specs)
        for site, spec in specs.items():
            if spec != specs[first]:
                names = self.terms.sites
                raise UserError(f"sites differ: {names[first]} has {specs[first]}, {names[site]} {spec}")
        return specs[first]

    def _normalisation(self, joined: dict[int, tuple[Groups, About]], spec: InputSpec) -> State:
        """Of all sites' training samples together, so that all see the same input."""
        if spec.kind == "tokens":
            return {}
        total, squares = (
            sum_of([groups["sums"][n] for groups, _ in joined.values()]) for n in ("total", "squares")
        )
        values = int(np.prod(spec.shape[1:])) if spec.kind == "image" else 1
        count = values * sum(int(about["samples"]) for _, about in joined.values())
        mean, deviation = mean_and_deviation(total, squares, count)
        return {"mean": mean, "deviation": deviation}

    def _statistics(self, joined: dict[int, tuple[Groups, About]], sizes: Tensor) -> State:
        """Averaged by p_k, as on one machine."""
        p = sizes.double() / sizes.sum()
        means: State = {}
        for site, (groups, _) in joined.items():
            for name, value in groups.get("statistics", {}).items():
                means[name] = means.get(name, torch.zeros_like(value, dtype=torch.float64)) + p[site] * value
        return {name: value.float() for name, value in means.items()}


def sum_of(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum(dim=0)
