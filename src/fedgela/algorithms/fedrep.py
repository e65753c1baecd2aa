"""FedRep: a shared body under heads of the clients' own.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.

    for `head_epochs`:  min over the head of CE, the body fixed
    for `body_epochs`:  min over the body of CE, the head fixed

Only the body is averaged; a client's head stays with it. The authors use 10 + 1 epochs on CIFAR10 with two
classes a client, 10 + 5 on CIFAR10 with five and on CIFAR100. The default halves the local epochs of the run
instead, 5 + 5 of 10, so that every method trains for as long (with one local epoch it takes one of each). It
is too little for either where an epoch is a step or two: a search tries 10 + 10 as well.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from fedgela.algorithms.fedavg import FedAvg, GlobalOf, Grid, PersonalOf, Phase

BODY = ("backbone.", "projection.")
HEAD = ("head.",)
EPOCHS = "head_epochs,body_epochs"


@dataclass(frozen=True)
class FedRep(FedAvg):
    name: ClassVar[str] = "fedrep"
    title: ClassVar[str] = "FedRep"
    GA_of: ClassVar[GlobalOf] = "locals"
    PA_of: ClassVar[PersonalOf] = "local"
    keeps_model: ClassVar[bool] = True
    grid: ClassVar[Grid] = {EPOCHS: ((None, None), (10, 1), (10, 5), (5, 5), (10, 10))}

    head_epochs: Annotated[int, Ge(0)] | None = None
    body_epochs: Annotated[int, Ge(0)] | None = None

    def __post_init__(self) -> None:
        if (self.head_epochs is None) != (self.body_epochs is None):
            raise ValueError("give head_epochs and body_epochs, or neither")
        if self.head_epochs == self.body_epochs == 0:
            raise ValueError("head_epochs and body_epochs are both 0: nothing would be trained")

    def searched(self, epochs: int) -> Grid:
        """The grid without repetitions: with ten local epochs, say, the default is the same as (5, 5)."""
        ways: dict[tuple[Phase, ...], Any] = {}
        points: tuple[Any, ...] = self.grid.get(EPOCHS, ())
        for head, body in [(self.head_epochs, self.body_epochs), *points]:
            way = replace(self, head_epochs=head, body_epochs=body).phases(epochs)
            ways.setdefault(way, (head, body))
        return {**self.grid, EPOCHS: tuple(ways.values())}

    def travels(self, entry: str) -> bool:
        return not entry.startswith(HEAD)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        head, body = self.head_epochs, self.body_epochs
        if head is None or body is None:
            head, body = max(1, epochs // 2), max(1, epochs - epochs // 2)
        return Phase(head, HEAD), Phase(body, BODY)
