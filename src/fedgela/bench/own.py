"""This project's engine, as any run uses it."""

from fedgela.bench.contender import Contender
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.server import Server


class Own(Contender):
    includes = "training, average, global model on the test set, local models on their clients' test sets"
    threaded = False  # it chooses threads and processes by itself

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        super().__init__(experiment, federation)
        self.server = Server(experiment, federation)
        self.progress = self.server.begin()

    def round(self) -> None:
        self.server.step(self.progress)

    @property
    def precision(self) -> str:
        return self.server.experiment.precision or super().precision

    def close(self) -> None:
        self.server.close()
