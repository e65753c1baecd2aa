"""The data that a run was trained on, for all who use its models afterwards."""

from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.data.sources import is_at_hand
from fedgela.errors import UserError
from fedgela.resolve import resolve


def federation_of(e: Experiment) -> Federation:
    """The federation of a local run's experiment, on the CPU; a UserError where its data is not here: nothing
    is fetched."""
    if not is_at_hand(e.dataset, e.data_dir, e.image_size):
        raise UserError(f"the data set {e.dataset!r} is not on this machine")
    return resolve(e.with_(device="cpu", tensorboard=False))[1]
