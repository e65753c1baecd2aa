"""The ServerApp of a federation's run: who is there, what they have, and then the rounds of any run."""

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgela.aggregation import check_rule, parse_aggregation
from fedgela.algorithms import mean_by_samples
from fedgela.checkpoints import FolderStore
from fedgela.config import Experiment, parse_experiment, read_toml
from fedgela.data.dataset import mean_and_deviation
from fedgela.errors import UserError, first_line
from fedgela.evaluation import Record
from fedgela.files import write_atomically, write_json
from fedgela.flower.class_list import stripped, together
from fedgela.flower.exchange import Exchange
from fedgela.flower.federated_server import FederatedServer
from fedgela.flower.incoming import Answer, Heard, Unsound, check_classes, check_joining, hear, spec_of
from fedgela.flower.privacy import Releases, check_protects
from fedgela.flower.processes import die_with_parent
from fedgela.flower.secure import check_hides
from fedgela.flower.server_data import federation_of_sites, server_data
from fedgela.flower.terms import (
    AGREED,
    ALIVE,
    ASKED,
    ERROR,
    NOTES,
    RELEASES,
    STARTED,
    TERMS,
    Agreed,
    Terms,
    TooFewSites,
)
from fedgela.flower.wire import About, Groups, encode
from fedgela.inputs import InputSpec
from fedgela.listener import Listener
from fedgela.models import State, check_weights, default_model, default_projection
from fedgela.own_code import check_own_code
from fedgela.resolve import device_of
from fedgela.runfolder import METRICS, RunFolder
from fedgela.runs import go_on
from fedgela.saved.runs import read_records
from fedgela.saved.sites import joined as joined_by

# where a method divides by pooled statistics (phi = paper-linear, paper-sqrt)
NO_LENGTH = "has a class that no site had when the run began, for which the method has no length"

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    # without its SuperLink it can do nothing but try for minutes to reach it, and keep the folder locked; all
    # that it knows is in the last checkpoint
    die_with_parent(signal.SIGKILL)
    folder = RunFolder(Path(str(context.run_config["folder"])))
    try:
        with folder.locked(), _refused_is_none(folder):
            (folder.path / ALIVE).write_text(str(os.getpid()))
            conduct(folder, grid)
    except UserError as error:
        write_atomically(folder.path / ERROR, str(error))
        raise
    except httpx.HTTPError as error:
        lost = f"the connection to the server was lost ({first_line(error)})"
        write_atomically(folder.path / ERROR, f"{lost}; 'fedgela federation run DIR --resume' goes on")
        raise
    except BaseException as error:
        write_atomically(folder.path / ERROR, f"{type(error).__name__}: {error} (a bug: see superlink.log)")
        raise


@contextlib.contextmanager
def _refused_is_none(folder: RunFolder) -> Iterator[None]:
    """A run that is refused before it has begun leaves none to go on with: `--resume` takes another, and its
    folder is free."""
    try:
        yield
    except TooFewSites:
        raise  # it goes on once they are there
    except UserError:
        if not folder.exists():
            (folder.path / TERMS).unlink()
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
    began = folder.exists()
    path = folder.path / ASKED
    experiment = folder.experiment() if began else parse_experiment(read_toml(path), str(path))
    check_own_code(folder.path, experiment)
    asked = json.loads((folder.path / TERMS).read_text())
    terms = Terms.of(asked["terms"])
    check_possible(experiment, terms)
    nodes = {int(node): int(site) for node, site in asked["nodes"].items()}
    listener = Written(folder)
    exchange = Exchange(grid, nodes)
    gathering = Gathering(
        exchange, terms, experiment, asked["test_data"], listener.note, folder.path / RELEASES
    )
    if began:
        # where the server's disk was full, or its power went, the last line may be incomplete
        records = read_records(folder.path / METRICS, listener.note, being_written=True)
        gathering.recall(folder.path / AGREED, records)
    server = gathering.server()
    store = FolderStore(folder.clients)
    checkpoint = None
    if began:
        checkpoint = folder.checkpoints.load(torch.device(server.experiment.device), listener.note)
    else:
        server.agreed.write(folder.path / AGREED)
        folder.create(server.experiment)
    with contextlib.closing(server):
        return go_on(folder, server, store, checkpoint, listener)


def check_possible(experiment: Experiment, terms: Terms) -> None:
    """A UserError where no sites could do it, whatever they have: all that is known before they are asked."""
    sites = len(terms.sites)
    if experiment.algorithm.pooled:
        raise UserError(f"{experiment.algorithm.title} pools all data in one place; sites keep theirs")
    if experiment.validation > 0:
        raise UserError("validation: sites hold their own test samples out; leave it at 0")
    if experiment.track:
        raise UserError(
            "track: shows all classes to every local model, but a site has its own only; leave it out"
        )
    if experiment.weights is not None:
        check_weights(experiment.model, Path(experiment.weights).expanduser())
    if terms.dp_noise > 0:
        check_protects(experiment, sites)
    if terms.secure_aggregation:
        check_hides(experiment)
    if (rule := parse_aggregation(experiment.aggregation)) is not None:
        check_rule(rule, experiment.algorithm, min(experiment.sample or sites, sites))


def check_weights_travel(server: FederatedServer) -> None:
    """A file of weights is the server's: what of them does not travel would begin at random on sites."""
    body = {name for name in server.net.state_dict() if name.startswith("backbone.")}
    stays = sorted(body - server.travelling(server.net.state_dict()).keys())
    if server.experiment.weights is not None and stays:
        raise UserError(
            f"weights: sites would begin without them, since {stays[0]} (and {len(stays) - 1} more) does not "
            f"travel in {server.algorithm.title} with batchnorm = {server.experiment.batchnorm}"
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
        releases: Path,
    ) -> None:
        """`releases` is where noisy models are counted."""
        self.releases = Releases(releases)
        self.exchange, self.terms, self.experiment, self.note = exchange, terms, experiment, note
        self.test_data = test_data
        self.agreed: Agreed | None = None  # as the run began with, whoever is there now
        self.tested: dict[str, int] = {}  # test samples by site: one that is away now still counts in PA
        self.refused: dict[int, str] = {}  # why a site may not take part

    def server(self) -> FederatedServer:
        if not self.terms.classes:
            self.terms = dataclasses.replace(self.terms, classes=self._classes())
        joined = self.gather("join")
        if self.agreed is None:
            self.agreed, joined = self._agree(joined)
        e, agreed = self.experiment, self.agreed
        resolved = e.with_(
            dataset="federation",  # no data of that name is ever looked for: it lies on the sites
            clients=len(self.terms.sites),
            sample=min(e.sample or len(self.terms.sites), len(self.terms.sites)),
            min_samples=0,
            model=e.model or default_model(agreed.sample),
            projection=e.projection or default_projection(len(agreed.classes)),
            partition="natural",
            partition_seed=e.seed if e.partition_seed is None else e.partition_seed,
            device=str(device_of(e.device)),
            checkpoint_every=1,
        )
        data = server_data(agreed.sample, agreed.classes, agreed.normalisation, self.test_data, e.image_size)
        sizes, tested = torch.zeros(2, len(self.terms.sites), dtype=torch.int64)
        for site, name in enumerate(self.terms.sites):
            tested[site] = self.tested.get(name, 0)
        for site, (_, about) in joined.items():
            sizes[site], tested[site] = about["samples"], about["tested"]
        server = FederatedServer(
            resolved,
            federation_of_sites(data, sizes, tested),
            self.terms,
            self.exchange,
            agreed=agreed,
            note=self.note,
            joined=joined,
            refused=self.refused,
            join=lambda sites: self.ask("join", sites),
            releases=self.releases,
        )
        check_weights_travel(server)
        for site, name in enumerate(self.terms.sites):
            if name in self.tested:
                server.scored_on[site] = self.tested[name]
        return server

    def recall(self, path: Path, records: Sequence[Record]) -> None:
        """What the run's sites agreed on when it began, and told of their test samples."""
        self.agreed = Agreed.read(path)
        self.tested = {name: int(told["tested"]) for name, told in joined_by(records).items()}
        self.terms = dataclasses.replace(self.terms, classes=self.agreed.classes)

    def _classes(self) -> tuple[str, ...]:
        answers = {self.terms.sites[site]: about for site, (_, about) in self.gather("classes").items()}
        named = {site: stripped(about["classes"]) for site, about in answers.items()}
        classes = together(named, [site for site, about in answers.items() if not about["named"]])
        self.note(f"classes, as the sites name them: {', '.join(classes)}")
        return classes

    def gather(self, task: str) -> dict[int, Answer]:
        """The answers of all sites, or of those that could be had in time. A site that was killed and comes
        back is asked again; one that refuses, or answers what is none, is not."""
        answers: dict[int, Answer] = {}
        silent: dict[int, str] = {}  # why a site that is there has not answered
        everybody = set(range(len(self.terms.sites)))
        end, told = time.monotonic() + self.terms.wait_seconds, False
        while True:
            missing = everybody - answers.keys() - self.refused.keys()
            if here := sorted(missing & set(self.exchange.online())):
                heard = self.ask(task, here)
                answers |= heard.sound
                for site, fault in heard.missing.items():
                    self.note(f"{self.terms.sites[site]}: {fault}")
                silent |= heard.missing
                self._refuse(heard.unsound)
                missing -= answers.keys() | self.refused.keys()
            if not missing or time.monotonic() > end:
                break
            if not told:
                self.note(f"waiting for {', '.join(self.terms.sites[site] for site in sorted(missing))}")
                told = True
            time.sleep(1.0)
        self._check_enough(answers, {site: why for site, why in silent.items() if site not in answers})
        return dict(sorted(answers.items()))

    def _refuse(self, why: Mapping[int, str]) -> None:
        self.refused |= why
        for site, text in why.items():
            self.note(f"{self.terms.sites[site]}: {text}")

    def _check_enough(self, answers: Mapping[int, Answer], silent: dict[int, str]) -> None:
        if len(answers) < self.terms.min_sites:
            raise self.terms.too_few(len(answers), silent | self.refused)

    def ask(self, task: str, sites: Sequence[int]) -> Heard:
        text = self.experiment.to_toml()
        questions = {site: encode({}, self.terms.question(task, site, text)) for site in sites}
        replies = self.exchange.ask(task, questions, self.terms.round_seconds)
        return hear(replies, self._check_classes if task == "classes" else self._check_joining)

    def _check_classes(self, site: int, groups: Groups, about: About) -> None:
        check_classes(groups, about)

    def _check_joining(self, site: int, groups: Groups, about: About) -> None:
        check_joining(groups, about, self.experiment.algorithm, len(self.terms.classes))
        if self.agreed is None:
            return
        if (spec := spec_of(about)) != self.agreed.sample:
            raise Unsound(spec.unlike(self.agreed.sample, "the run's sites"))
        for name, pooled in self.agreed.statistics.items():
            if ((groups["statistics"][name] > 0) & (pooled == 0)).any():
                raise Unsound(NO_LENGTH)

    def _agree(self, joined: dict[int, Answer]) -> tuple[Agreed, dict[int, Answer]]:
        """What all have in common whose samples look like those of most sites, or in a tie like the first's,
        and their answers; the others are refused."""
        specs = {site: spec_of(about) for site, (_, about) in joined.items()}
        most = Counter(specs.values()).most_common(1)[0][0]
        others = {site: spec.unlike(most, "the run's sites") for site, spec in specs.items() if spec != most}
        self._refuse(others)
        joined = {site: answer for site, answer in joined.items() if site not in others}
        self._check_enough(joined, {})
        classes, normalisation = self.terms.classes, self._normalisation(joined, most)
        return Agreed(classes, most, normalisation, self._statistics(joined)), joined

    def _normalisation(self, joined: Mapping[int, Answer], spec: InputSpec) -> State:
        """Of all sites' training samples together, so that all see the same input."""
        if spec.kind == "tokens":
            return {}
        total, squares = (
            torch.stack([groups["sums"][name] for groups, _ in joined.values()]).sum(dim=0)
            for name in ("total", "squares")
        )
        values = int(np.prod(spec.shape[1:])) if spec.kind == "image" else 1
        count = values * sum(int(about["samples"]) for _, about in joined.values())
        mean, deviation = mean_and_deviation(total, squares, count)
        return {"mean": mean, "deviation": deviation}

    def _statistics(self, joined: Mapping[int, Answer]) -> State:
        samples = torch.tensor([about["samples"] for _, about in joined.values()])
        return mean_by_samples([groups.get("statistics", {}) for groups, _ in joined.values()], samples)
