"""FedBABU: only the body is trained; the head stays at its random start until a client fine-tunes.

Oh, Kim, Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.

    min over the body of CE, the head fixed at one random initialisation for all

The body is averaged. PA is measured after fine-tuning the whole model on each client (`finetune_epochs` of
the run; the authors fine-tune for 5 epochs). The head is no parameter of the optimiser, so that not even
weight decay moves it.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedgela.algorithms.fedavg import Beside, FedAvg, Phase
from fedgela.algorithms.fedrep import BODY, HEAD


@dataclass(frozen=True)
class FedBABU(FedAvg):
    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"
    beside: ClassVar[Beside] = ("GA_locals",)

    def travels(self, entry: str) -> bool:
        return not entry.startswith(HEAD)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(epochs, BODY),)
