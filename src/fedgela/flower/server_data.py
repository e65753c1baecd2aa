"""The data that a federation's server has: none but its own test set, if it was given one."""

import numpy as np
import torch
from torch import Tensor

from fedgela.data import Federation, load_dataset
from fedgela.data.dataset import Dataset
from fedgela.data.federation import Shards
from fedgela.errors import UserError
from fedgela.flower.class_list import agreed
from fedgela.inputs import InputSpec
from fedgela.models import State

_DTYPES = {"image": torch.uint8, "features": torch.float32, "tokens": torch.int64}


def server_data(
    spec: InputSpec,
    classes: tuple[str, ...],
    normalisation: State,
    test_data: str | None,
    image_size: int | None,
) -> Dataset:
    """The test part of `test_data`, beside a blank training sample that gives its shape."""
    blank = torch.zeros(1, *spec.shape, dtype=_DTYPES[spec.kind])
    x_test, y_test = blank[:0], torch.zeros(0, dtype=torch.int64)
    if test_data is not None:
        test = agreed(load_dataset(test_data, image_size=image_size), classes)
        if test.spec != spec:
            raise UserError(f"{test_data}: {test.spec.unlike(spec, 'the sites')}")
        x_test, y_test = test.x_test, test.y_test
    data = Dataset(
        name="federation",
        kind=spec.kind,
        x_train=blank,
        y_train=torch.zeros(1, dtype=torch.int64),
        x_test=x_test,
        y_test=y_test,
        classes=len(classes),
        vocabulary=spec.vocabulary,
        class_names=classes,
    )
    return data.with_statistics(**normalisation) if normalisation else data


def federation_of_sites(data: Dataset, samples: Tensor, tested: Tensor) -> Federation:
    """Sites of which their numbers of training and test samples are known, [N] each, and no classes."""
    N = len(samples)
    train = Shards(np.zeros(0, dtype=np.int64), N)  # their sizes are all that is known of them
    train.sizes[:] = samples.numpy()
    return Federation(
        data,
        N,
        train,
        Shards(np.zeros(len(data.y_test), dtype=np.int64), N),
        samples[:, None].clone(),
        tested[:, None].clone(),
    )
