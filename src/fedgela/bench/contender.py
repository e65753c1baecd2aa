"""What is measured: an engine that trains FedAvg, one whole round at a time."""

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar

import torch

from fedgela.config import Experiment
from fedgela.data import Federation


class Contender:
    """Made of a resolved experiment; `round` trains all clients, averages and evaluates.

    The same net, initial weights, samples and split for every contender.
    """

    includes: ClassVar[str]  # what a round is made of, in words
    # whether it computes in its own process with torch's threads, so that their number is to be chosen
    threaded: ClassVar[bool] = True

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        self.experiment = experiment
        self.federation = federation
        self.device = torch.device(experiment.device)

    def round(self) -> None:
        raise NotImplementedError

    def warm_up(self) -> None:
        """A first round, which is not measured: it makes what later ones use again."""
        self.round()

    @property
    def samples(self) -> int:
        """Training samples that the steps of a round see: a ragged last batch is dropped, unless it is the
        only one."""
        B = self.experiment.batch_size
        sizes: list[int] = self.federation.train.sizes.tolist()
        return self.experiment.epochs * sum(n - n % B if n >= B else n for n in sizes)

    @property
    def precision(self) -> str:
        """In which the matrix products are computed: 'fp32', 'tf32' or 'bf16'."""
        # of fp32 tensors on a GPU: torch lets convolutions take tf32 unless told otherwise
        on_gpu = self.device.type == "cuda"
        return "tf32" if on_gpu and torch.backends.cudnn.allow_tf32 else "fp32"

    def use_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def close(self) -> None:
        """Give back what the contender holds beside memory."""


@dataclass(frozen=True)
class Engine:
    """A contender by name, and the modules that it needs; it is imported only where it is used."""

    contender: str  # package.module:Class
    needs: tuple[str, ...] = ()
    package: str = ""  # by which pip knows a peer

    @property
    def is_peer(self) -> bool:
        return bool(self.needs)

    def missing(self) -> list[str]:
        return [module for module in self.needs if importlib.util.find_spec(module) is None]

    def version(self) -> str | None:
        try:
            return version(self.package or "fedgela")
        except PackageNotFoundError:
            return None


PLAIN = "plain"
ENGINES = {
    PLAIN: Engine("fedgela.bench.plain:Plain"),
    "fedgela": Engine("fedgela.bench.own:Own"),
    "flower": Engine("fedgela.bench.flower:Flower", ("flwr", "ray"), "flwr"),
    "pfl": Engine("fedgela.bench.pfl:Pfl", ("pfl",), "pfl"),
    "fluke": Engine("fedgela.bench.fluke:Fluke", ("fluke",), "fluke-fl"),
}
