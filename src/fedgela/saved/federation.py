"""The data that a run was trained on, for all who use its models afterwards."""

import re

from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.data.catalogue import BUILT_IN, known
from fedgela.data.sources import as_path, data_directory
from fedgela.errors import UserError
from fedgela.resolve import resolve


def federation_of(e: Experiment) -> Federation:
    """The federation of a local run's experiment, on the CPU; a UserError where its data is not here: nothing
    is fetched."""
    if not _is_here(e):
        raise UserError(f"the data set {e.dataset!r} is not on this machine")
    return resolve(e.with_(device="cpu", tensorboard=False))[1]


def _is_here(e: Experiment) -> bool:
    if e.dataset in BUILT_IN or as_path(e.dataset, e.data_dir) is not None:
        return True
    spelling = re.sub("[-_]", "[-_]", e.dataset)
    return known(e.dataset) is None or any(data_directory(e.data_dir).glob(f"{spelling}*.npz"))
