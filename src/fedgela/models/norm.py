"""What becomes of BatchNorm in a federation: averaged with the weights, local, or replaced by GroupNorm.

averaged   its parameters and running statistics are averaged like all weights (the default)
local      they stay with their client: Li et al., FedBN: Federated Learning on Non-IID Features via Local
           Batch Normalization, ICLR 2021 (see server.py)
group      every BatchNorm2d is a GroupNorm, which has no statistics: Hsieh et al., The Non-IID Data Quagmire
           of Decentralized Machine Learning, ICML 2020
"""

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Policy = Literal["averaged", "local", "group"]

MOST_GROUPS = 32


def batchnorm_entries(module: nn.Module) -> set[str]:
    """The names of all entries of BatchNorm layers: parameters, running statistics, counters. Those of a
    layer that is in the net twice come under both names."""
    return {
        f"{name}.{entry}"
        for name, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, _BatchNorm)
        for entry in part.state_dict()
    }


def with_groupnorm(module: nn.Module) -> nn.Module:
    """The module, changed in place, with a GroupNorm for every BatchNorm2d; scale and shift are kept. A layer
    that is in the module twice is one GroupNorm in both places."""
    if isinstance(module, nn.BatchNorm2d):
        return _groupnorm(module)
    made = {part: _groupnorm(part) for part in module.modules() if isinstance(part, nn.BatchNorm2d)}
    for name, part in list(module.named_modules(remove_duplicate=False)):
        if isinstance(part, nn.BatchNorm2d):
            module.set_submodule(name, made[part])
    return module


def _groupnorm(norm: nn.BatchNorm2d) -> nn.GroupNorm:
    channels = norm.num_features
    groups = max(g for g in range(1, MOST_GROUPS + 1) if channels % g == 0)
    group = nn.GroupNorm(groups, channels, norm.eps, norm.affine)
    group.load_state_dict(dict(norm.named_parameters()))
    for mine, its in zip(group.parameters(), norm.parameters(), strict=True):
        mine.requires_grad_(its.requires_grad)
    return group
