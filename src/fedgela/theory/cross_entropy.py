"""Cross-entropy of logits [..., n, C] and labels that broadcast to [..., n], and its slope."""

import torch
from torch import Tensor


def own_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Those of the samples' own classes, [..., n]."""
    return logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])[..., 0]


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits)_y of every sample, [..., n]."""
    return logits.logsumexp(dim=-1) - own_logits(logits, labels)


def errors(logits: Tensor, labels: Tensor) -> Tensor:
    """softmax - e_y, by which a sample's cross-entropy changes with its logits, [..., n, C]."""
    return logits.softmax(dim=-1) - torch.nn.functional.one_hot(labels, logits.shape[-1])
