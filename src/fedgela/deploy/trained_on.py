"""Which samples a model was trained on: what it says of those tells little of new ones."""

import contextlib
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedgela.data import load_dataset
from fedgela.data.digests import digests
from fedgela.deploy.card import Card
from fedgela.deploy.model import Model
from fedgela.deploy.samples import Samples
from fedgela.errors import UserError


def trained_on(model: Model, samples: Samples, path: Path) -> npt.NDArray[np.bool_]:
    """[n]: those equal, byte for byte, to a training sample of any client. `path` is where they lie: an
    exported model has no training samples beside it, and knows them only by its data's fingerprint."""
    known = model.training_samples
    if known is None:
        known = _training_samples(path, model.card)
    if known is None:
        return np.zeros(len(samples.x), dtype=bool)
    seen = {tuple(digest) for digest in digests(known.to(samples.x.dtype)).tolist()}
    return np.array([tuple(digest) in seen for digest in digests(samples.x).tolist()])


def _training_samples(path: Path, card: Card) -> Tensor | None:
    """Those of the data at this place, where it is what the model was trained on."""
    decoded = card.input.kind == "image" and path.suffix.lower() != ".npz"
    size = card.input.shape[-1] if decoded else None
    with contextlib.suppress(UserError), warnings.catch_warnings():  # it is no data set
        warnings.simplefilter("ignore")  # what cannot be read was told with the samples
        data = load_dataset(str(path.resolve()), image_size=size, unreadable="skip")
        if data.fingerprint == card.data:
            return data.x_train
    return None
