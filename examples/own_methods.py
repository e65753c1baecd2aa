"""Methods of one's own: a dataclass derived from FedAvg (or any other method), its fields the
hyper-parameters. fedgela/algorithms/fedavg.py lists all that may be overridden."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Lt
from torch import Tensor
from torch.nn import functional as F

from fedgela.algorithms import FedAvg
from fedgela.models import Net, State


@dataclass(frozen=True)
class SmoothedFedAvg(FedAvg):
    """FedAvg with label smoothing: the smallest of changes."""

    title: ClassVar[str] = "FedAvg, smoothed"
    # what `fedgela tune` tries, the default first
    grid: ClassVar[dict[str, tuple[object, ...]]] = {"smoothing": (0.1, 0.0, 0.2)}

    smoothing: Annotated[float, Ge(0), Lt(1)] = 0.1

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        return F.cross_entropy(net(x), y, reduction="none", label_smoothing=self.smoothing)
