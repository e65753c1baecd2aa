"""What a run in a federation has beside its experiment, and the files that it has beside a local run's."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import fedgela
from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.files import write_json
from fedgela.flower import ROUND_SECONDS, WAIT_SECONDS
from fedgela.flower.wire import About, Wire
from fedgela.inputs import InputSpec
from fedgela.models import State

ASKED = "asked.toml"  # the experiment, before the sites filled it in
# the terms below, which node is which site, the server's own test data; a folder without it holds no run
TERMS = "federation.json"
AGREED = "agreed.json"  # what the sites agreed on when the run began
RELEASES = "privacy.json"  # how many noisy models were made, with differential privacy
NOTES, ERROR, ALIVE, STARTED = "notes.log", "error.txt", "serverapp.pid", "started.json"
GA_OF_LOCALS = (
    "GA of local models is their accuracy on all test samples, but neither models nor samples leave a site: "
    "it is not known here; PA, each on its own site's test samples, is"
)


def described(experiment: Experiment) -> str:
    """What is trained, for who looks at a run that begins."""
    e = experiment
    return f"method {e.algorithm.title}, model {e.model}, rounds {e.rounds}, local epochs {e.epochs}"


class TooFewSites(UserError):
    """The end of a run that goes on once more are there."""


@dataclass(frozen=True)
class Terms:
    federation: str  # its id
    run: str  # the key by which sites keep their models
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    round_seconds: float = ROUND_SECONDS
    wait_seconds: float = WAIT_SECONDS
    min_sites: int = 1
    wire: Wire = "fp32"
    dp_noise: float = 0.0  # 0: no differential privacy
    dp_clip: float = 1.0
    dp_delta: float = 1e-5
    secure_aggregation: bool = False

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Terms":
        """From JSON, which has lists for tuples."""
        return cls(**{**table, "sites": tuple(table["sites"]), "classes": tuple(table["classes"])})

    def question(self, task: str, site: int, experiment: str, **more: object) -> About:
        return {
            "task": task,
            "federation": self.federation,
            "version": fedgela.__version__,
            "run": self.run,
            "site": site,
            "sites": len(self.sites),
            "classes": list(self.classes),
            "secure_aggregation": self.secure_aggregation,
            "experiment": experiment,
            **more,
        }

    def too_few(self, here: int, others: Mapping[int, str]) -> TooFewSites:
        """The end of a run with so few sites, and why `others` are not among them."""
        why = "".join(f"; {self.sites[site]}: {text}" for site, text in sorted(others.items()))
        return TooFewSites(
            f"only {here} of at least {self.min_sites} sites are there{why}; 'fedgela federation run DIR "
            f"--resume' goes on once they are (it waits --wait-seconds {self.wait_seconds:g} for sites, "
            f"--round-seconds {self.round_seconds:g} for answers)"
        )


@dataclass(frozen=True)
class Agreed:
    """What all sites of a run have in common, kept for when it is resumed."""

    classes: tuple[str, ...]
    sample: InputSpec
    normalisation: State
    statistics: State = field(default_factory=dict)  # pooled, of a method that has sites send some

    def write(self, path: Path) -> None:
        """Floats come back from JSON as they were."""
        held = {"classes": self.classes, "sample": asdict(self.sample)}
        for group in ("normalisation", "statistics"):
            held[group] = {name: value.tolist() for name, value in getattr(self, group).items()}
        write_json(path, held)

    @classmethod
    def read(cls, path: Path) -> "Agreed":
        held = json.loads(path.read_text())
        normalisation, statistics = (
            {name: torch.tensor(value) for name, value in group.items()}
            for group in (held["normalisation"], held.get("statistics", {}))  # older versions kept none
        )
        sample = InputSpec.of(held["sample"])
        return cls(tuple(held["classes"]), sample, normalisation, statistics)
