"""FedGELA: Eq. 4 and 5 of the paper, its variants, and what leaves a client."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    doubled,
    features_by_hand,
    linear,
    small_batch,
    small_net,
)
from fedgela import runs
from fedgela.algorithms import ALGORITHMS, FedPrior
from fedgela.algorithms.fedgela import FedGE, FedGELA, FedLA
from fedgela.models import Net
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import Notes, Recording, play, serve, tiny, watch_updates

COUNTS = [6, 2, 0]
PRESENT = [0, 1]
BATCH = small_batch([0, 1, 0, 0, 1, 0])


def normed(z: np.ndarray, norm: str, w: Weights) -> np.ndarray:
    if norm == "l2":
        return np.array([row / math.sqrt(sum(row * row)) for row in z])
    if norm == "batchnorm":
        mean, variance = z.mean(axis=0), ((z - z.mean(axis=0)) ** 2).mean(axis=0)
        unit = (z - mean) / np.sqrt(variance + 1e-5)
        return unit * w["head.norm.weight"] + w["head.norm.bias"]
    return z


def assert_is_eq_5(method: FedGELA, lengths: list[float], extra: dict[str, torch.Tensor]) -> Net:
    """-log softmax_c(Phi_kc W_c^T h), the sum over all classes or over C_k."""
    net = small_net(method)
    W = net.head.classifier.weight.detach().clone().numpy()  # the fixed ETF
    client = doubled(method.client_vectors(torch.tensor(COUNTS), extra))
    np.testing.assert_allclose(client["phi"].numpy(), lengths, rtol=1e-6)

    def reference(w: Weights, _: Weights) -> np.ndarray:
        h = normed(features_by_hand(w, BATCH[0]), method.feature_norm or "", w)
        logits = np.array([[phi * sum(c * row) for phi, c in zip(lengths, W, strict=True)] for row in h])
        return ce_by_hand(logits, BATCH[1], PRESENT if method.softmax == "present" else None)

    assert_follows(method, net, BATCH, client, reference)
    assert np.array_equal(net.head.classifier.weight.numpy(), W)
    return net


@pytest.mark.parametrize("softmax", ["all", "present"])
@pytest.mark.parametrize("norm", ["l2", "batchnorm", "none"])
def test_loss_and_step(softmax: Any, norm: Any) -> None:
    method = FedGELA(E_W=9.0, softmax=softmax, feature_norm=norm)
    net = assert_is_eq_5(method, [3 * 6 / 8, 3 * 2 / 8, 0.0], {})  # Phi_kc = C n_kc / n_k
    W = net.head.classifier.weight
    torch.testing.assert_close(W.square().sum(dim=1), torch.full((3,), 9.0).double())  # |W_c|^2 = E_W
    cosines = (W @ W.T / 9.0)[~torch.eye(3, dtype=torch.bool)]
    torch.testing.assert_close(cosines, torch.full((6,), -1 / 2).double(), rtol=0, atol=1e-6)


NORMALISER = torch.tensor([0.5, 0.25, 0.8], dtype=torch.float64)


@pytest.mark.parametrize(
    ("phi", "lengths"),
    [
        ("power:0", [1.0, 1.0, 1.0]),
        ("power:0.5", [(3 * 6 / 8) ** 0.5, (3 * 2 / 8) ** 0.5, 0.0]),
        ("exp", [math.exp(6 / 8), math.exp(2 / 8), 1.0]),
        ("paper-linear", [6 / 8 / 0.5, 2 / 8 / 0.25, 0.0]),
        ("paper-sqrt", [(6 / 8) ** 0.5 / 0.5, (2 / 8) ** 0.5 / 0.25, 0.0]),
        ("paper-exp", [math.exp(6 / 8) / 0.5, math.exp(2 / 8) / 0.25, 1 / 0.8]),
    ],
)
def test_every_form_of_phi_reaches_the_loss(phi: str, lengths: list[float]) -> None:
    assert_is_eq_5(FedGELA(E_W=9.0, phi=phi), lengths, {"phi_normaliser": NORMALISER})


def test_the_floor_reaches_the_loss() -> None:
    assert_is_eq_5(FedGELA(E_W=9.0, phi_floor=0.2), [3 * 6 / 8, 3 * 2 / 8, 0.2], {})


def test_fedge_is_the_etf_with_all_lengths_one() -> None:
    assert_is_eq_5(FedGE(E_W=9.0), [1.0, 1.0, 1.0], {})


@pytest.mark.parametrize("own", [{"phi": "even"}, {"phi_floor": 0.1}])
@pytest.mark.parametrize("method", [partial(FedGELA, adapt=False), FedGE, FedPrior])
def test_options_of_the_adaptation_are_refused_where_nothing_is_adapted(
    method: Callable[..., FedGELA], own: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="phi and phi_floor are of the local adaptation: they need adapt"):
        method(**own)


@pytest.mark.parametrize(
    ("phi", "floor"), [("power:1", 0.0), ("even", 0.0), ("power:0.5", 0.0), ("even", 0.1)]
)
@pytest.mark.parametrize("classes", [2, 3])
def test_of_two_classes_only_the_sum_of_the_lengths_counts(classes: int, phi: str, floor: float) -> None:
    """It says by itself where it is FedGE on every client."""
    method = FedGELA(phi=phi, phi_floor=floor)
    head, same = method.head(8, classes, seed=0), True
    x, y = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % classes
    for counts in ([6, 1, 3], [4, 0, 2]):
        held = torch.tensor(counts[:classes])
        losses = [m.loss(head, x, y, m.client_vectors(held, {})) for m in (method, FedGE())]
        same &= torch.allclose(*losses, rtol=1e-5)
    assert (method.in_vain(classes) is not None) == same
    assert FedGE().in_vain(classes) is None


def test_fedla_is_phi_on_a_learnable_head() -> None:
    # the third row of the ablation
    method = FedLA()
    assert (method.etf, method.adapt, method.feature_norm) == (False, True, "none")
    lengths = np.array([3 * 6 / 8, 3 * 2 / 8, 0.0])

    def reference(w: Weights, _: Weights) -> np.ndarray:
        return ce_by_hand(lengths * linear(w, "head.classifier", features_by_hand(w, BATCH[0])), BATCH[1])

    client = doubled(method.client_vectors(torch.tensor(COUNTS), {}))
    assert_follows(method, small_net(method), BATCH, client, reference)
    assert method.travels("head.classifier.weight")


def test_a_batch_of_one_is_normed_by_running_statistics() -> None:
    net = small_net(FedGELA(feature_norm="batchnorm"))
    net.train()
    with torch.no_grad():
        net.head.norm.running_mean.fill_(0.3)
        net.head.norm.running_var.fill_(4.0)
        z = net.features(BATCH[0][:1])
    torch.testing.assert_close(net.head.norm(z), (z - 0.3) / (4.0 + 1e-5) ** 0.5)


# -- prediction ------------------------------------------------------------------------------------


def test_a_missing_class_is_never_predicted_among_the_present() -> None:
    x, _ = small_batch([0] * 200, seed=1)
    counts = torch.tensor(COUNTS)
    answers = {}
    for among in ("all", "present"):
        method = FedGELA(E_W=9.0, personal_prediction=among)
        client = method.client_vectors(counts, {})
        answers[among] = method.predict_personal(small_net(method), x, client).argmax(dim=1)
        assert (method.predict_global(small_net(method), x).argmax(dim=1) == 2).any()
    # over all classes, a missing one's logit 0 wins where the others are negative
    assert (answers["all"] == 2).any()
    assert not (answers["present"] == 2).any()


def test_a_client_without_samples_predicts_as_the_global_model_does() -> None:
    x, _ = small_batch([0] * 50, seed=1)
    method = FedGELA(E_W=9.0, personal_prediction="present")
    net, client = small_net(method), method.client_vectors(torch.zeros(len(COUNTS), dtype=torch.int64), {})
    torch.testing.assert_close(method.predict_personal(net, x, client), method.predict_global(net, x))


def test_the_global_model_is_the_plain_etf_and_the_personal_one_phi_times_it() -> None:
    method = FedGELA(E_W=9.0)
    net, x = small_net(method), BATCH[0]
    client = doubled(method.client_vectors(torch.tensor(COUNTS), {}))
    plain, personal = method.predict_global(net, x), method.predict_personal(net, x, client)
    torch.testing.assert_close(personal, plain * torch.tensor([3 * 6 / 8, 3 * 2 / 8, 0.0]))
    W = net.head.classifier.weight
    torch.testing.assert_close(method.classifier(net.state_dict(), client), client["phi"][:, None] * W)
    torch.testing.assert_close(method.classifier(net.state_dict(), {}), W)


# -- what leaves a client --------------------------------------------------------------------------


@pytest.mark.parametrize("phi", ["power:1", "power:0.5", "exp"])
@pytest.mark.parametrize("name", ["fedgela", "fedla"])
def test_forms_computed_on_the_client_share_nothing(name: str, phi: str) -> None:
    method = ALGORITHMS[name](phi=phi)
    assert method.shares() is None
    assert method.statistics(torch.tensor([COUNTS])) == {}


@pytest.mark.parametrize("phi", ["paper-sqrt", "paper-exp"])
def test_the_papers_forms_share_and_say_so(npz: Path, tmp_path: Path, phi: str) -> None:
    experiment = tiny(npz, algorithm={"name": "fedgela", "phi": phi}, rounds=1, partition="dirichlet:0.5")
    server = serve(experiment)
    Q = np.sqrt if phi == "paper-sqrt" else np.exp
    counts = server.federation.train_counts.double().numpy()
    n_k = counts.sum(axis=1)
    expected = sum(n / n_k.sum() * Q(row / n) for n, row in zip(n_k, counts, strict=True))
    normaliser = server.begin().server.extra["phi_normaliser"]
    np.testing.assert_allclose(normaliser.numpy(), expected, rtol=1e-6)
    # so that sum_k p_k Phi_kc = 1 for every class that somebody has
    phis = server.algorithm.client_vectors(server.federation.train_counts, {"phi_normaliser": normaliser})
    np.testing.assert_allclose(n_k / n_k.sum() @ phis["phi"].double().numpy(), 1.0, rtol=1e-6)

    listener = Notes()
    runs.run(experiment, tmp_path / "run", listener)
    shares = json.loads((tmp_path / "run/result.json").read_text())["shares"]
    assert phi in shares
    assert "class distribution" in shares
    assert listener.notes == [f"FedGELA shares more than weights: {shares}"]


def test_the_etf_never_travels_and_its_norm_does(npz: Path) -> None:
    algorithm = {"name": "fedgela", "feature_norm": "batchnorm"}
    server = Server(*resolve(tiny(npz, algorithm=algorithm, rounds=2)), Recording())
    updates = watch_updates(server)
    play(server)
    assert updates
    for update in updates:
        assert not any(name.startswith("head.classifier") for name in update.model)
        assert {"head.norm.weight", "head.norm.running_mean"} <= update.model.keys()
        assert update.extra == {}


def test_the_etf_is_no_parameter() -> None:
    assert not any("classifier" in name for name, _ in small_net(FedGELA()).named_parameters())
    assert any("classifier" in name for name, _ in small_net(FedLA()).named_parameters())
