"""FedRoD: a generic head for all classes, a personal one for the client's, on one body."""

from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.by_hand import (
    Weights,
    assert_follows,
    ce_by_hand,
    doubled,
    features_by_hand,
    gradients,
    linear,
    small_batch,
    small_net,
    snapshot,
)
from fedgela.algorithms.fedrod import FedRoD
from fedgela.resolve import resolve
from fedgela.server import Server
from helpers import Recording, tiny, watch_updates

BATCH = small_batch([0, 1, 0, 0, 1])
PERSONAL = "head.personal."


@pytest.mark.parametrize("gamma", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("counts", [[6, 2, 3], [6, 2, 0]])
def test_loss_and_step(gamma: float, counts: list[int]) -> None:
    method = FedRoD(gamma=gamma)
    present = [c for c in range(3) if counts[c]]  # log 0 takes the others out of the sum
    prior = np.array([gamma * np.log(max(n, 1)) for n in counts])

    def reference(w: Weights, fixed: Weights) -> np.ndarray:
        z, stopped = features_by_hand(w, BATCH[0]), features_by_hand(fixed, BATCH[0])
        generic = ce_by_hand(linear(w, "head.generic", z) + prior, BATCH[1], present)
        both = linear(fixed, "head.generic", stopped) + linear(w, "head.personal", stopped)
        return generic + ce_by_hand(both, BATCH[1])

    client = doubled(method.client_vectors(torch.tensor(counts), {}))
    assert_follows(method, small_net(method), BATCH, client, reference)


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_missing_classes_and_large_logits_stay_finite(scale: float, gamma: float) -> None:
    method = FedRoD(gamma=gamma)
    net = small_net(method).float()
    with torch.no_grad():
        for parameter in net.head.parameters():
            parameter.mul_(scale)
    client = method.client_vectors(torch.tensor([6, 2, 0]), {})
    batch = BATCH[0].float(), BATCH[1]
    assert method.loss(net, *batch, client).isfinite().all()
    assert all(g.isfinite().all() for g in gradients(method, net, batch, client).values())


def test_ga_is_by_g_and_pa_by_g_and_p() -> None:
    method = FedRoD()
    net, x = small_net(method), BATCH[0]
    z = torch.from_numpy(features_by_hand({n: p.detach().numpy() for n, p in net.named_parameters()}, x))
    w = snapshot(net)
    g, p = (z @ w[f"head.{part}.weight"].T + w[f"head.{part}.bias"] for part in ("generic", "personal"))
    torch.testing.assert_close(method.predict_global(net, x), g)
    torch.testing.assert_close(method.predict_personal(net, x, {}), g + p)
    both = w["head.generic.weight"] + w["head.personal.weight"]
    assert torch.equal(method.classifier(w, {"prior": torch.zeros(3)}), both)
    assert torch.equal(method.classifier(w, {}), w["head.generic.weight"])


def test_the_personal_head_stays_with_its_client(npz: Path) -> None:
    store = Recording()
    server = Server(*resolve(tiny(npz, algorithm="fedrod", sample=2, rounds=5)), store)
    updates, progress = watch_updates(server), server.begin()
    initial, waited = progress.server.model, 0
    name = PERSONAL + "weight"
    for _ in range(5):
        before = dict(store.models)
        for client in server.select(progress.round + 1):
            start = server.job(progress, client).start
            assert torch.equal(start[name], before.get(client, initial)[name])
            generic = "head.generic.weight"
            assert torch.equal(start[generic], progress.server.model[generic])
        record = server.step(progress)
        for client in before.keys() - set(record["clients"]):
            assert torch.equal(store.models[client][name], before[client][name])
            waited += 1
    assert waited
    for update in updates:
        assert "head.generic.weight" in update.model
        assert not any(entry.startswith(PERSONAL) for entry in update.model)
    assert torch.equal(progress.server.model[name], initial[name])
    assert not torch.equal(progress.server.model["head.generic.weight"], initial["head.generic.weight"])
    assert not any(torch.equal(model[name], initial[name]) for model in store.models.values())
