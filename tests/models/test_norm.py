"""BatchNorm's policies: averaged, local as in FedBN, or GroupNorm in its place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedgela import models
from fedgela.algorithms import ALGORITHMS
from fedgela.checkpoints import FolderStore
from fedgela.errors import UserError
from fedgela.inputs import InputSpec
from fedgela.models import Backbone, State, batchnorm_entries, build_net
from fedgela.models.norm import with_groupnorm
from fedgela.runfolder import RunFolder
from fedgela.runs import resume, run
from fedgela.training import Job, Plan
from helpers import outcome_of, play, run_cut, same, serve, tiny, watch_updates

IMAGES = InputSpec("image", (1, 16, 16))
NORM = {
    f"backbone.norm.{e}" for e in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


class NormNet(Backbone):
    def __init__(self, spec: InputSpec) -> None:
        super().__init__(width=6)
        self.conv = nn.Conv2d(spec.shape[0], 6, 3, stride=3)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))


@pytest.fixture(autouse=True)
def norm_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.BACKBONES, "norm", NormNet)


# -- group -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (32, 32), (6, 6), (40, 20), (37, 1), (1280, 32)])
def test_groups_are_32_or_the_largest_divisor_below(channels: int, groups: int) -> None:
    norm = with_groupnorm(nn.BatchNorm2d(channels))
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels) == (groups, channels)


def test_groupnorm_keeps_scale_and_shift() -> None:
    norm = nn.BatchNorm2d(4, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    group = with_groupnorm(nn.Sequential(norm))[0]  # type: ignore[index]
    assert torch.equal(group.weight, norm.weight) and torch.equal(group.bias, norm.bias)
    assert group.eps == 1e-3


def test_groupnorm_is_trained_where_batchnorm_would_be() -> None:
    norm = nn.BatchNorm2d(4)
    norm.weight.requires_grad_(False)
    group = with_groupnorm(norm)
    assert [p.requires_grad for p in group.parameters()] == [False, True]
    assert list(with_groupnorm(nn.BatchNorm2d(4, affine=False)).parameters()) == []


def test_a_batchnorm_in_two_places_is_one_groupnorm_in_both() -> None:
    norm = nn.BatchNorm2d(4)
    net = with_groupnorm(nn.Sequential(norm, nn.Sequential(norm), norm))
    assert net[0] is net[1][0] is net[2]  # type: ignore[index]
    assert isinstance(net[0], nn.GroupNorm)  # type: ignore[index]


def test_group_leaves_no_batchnorm2d_in_a_resnet_and_all_else_as_it_was() -> None:
    plain, group = (
        build_net("resnet18", IMAGES, 8, nn.Identity, 0, batchnorm=policy) for policy in ("averaged", "group")
    )
    assert sum(isinstance(part, nn.GroupNorm) for part in group.modules()) == 20
    assert batchnorm_entries(group) == set()
    assert len(batchnorm_entries(plain)) == 20 * 5
    for name, value in group.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])
    x = torch.randn(4, *IMAGES.shape)
    group.train()
    one_by_one = torch.cat([group(x[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(
        group(x), one_by_one, rtol=1e-3, atol=1e-4
    )  # samples know nothing of each other


# -- local -----------------------------------------------------------------------------------------


def norm_of(state: State) -> State:
    return {name: value for name, value in state.items() if name in NORM}


def test_local_batchnorm_never_travels_and_all_else_does(npz: Path) -> None:
    server = serve(tiny(npz, model="norm", algorithm="fedavg", batchnorm="local"))
    sent = watch_updates(server)
    play(server, 2)
    everything = {name for name, value in server.net.state_dict().items() if value.is_floating_point()}
    assert len(everything & NORM) == 4
    assert len(sent) == 8
    assert all(set(update.model) == everything - NORM for update in sent)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedgela", "moon", "fedprox", "fedrod"])
def test_a_client_goes_on_with_its_own_batchnorm(npz: Path, algorithm: str) -> None:
    server = serve(tiny(npz, model="norm", algorithm=algorithm, batchnorm="local", sample=2, rounds=4))
    progress = server.begin()
    initial = progress.server.model
    last: dict[int, State] = {}
    for _ in range(4):
        upcoming = server.select(progress.round + 1)
        for k in upcoming:
            start = server.job(progress, k).start
            for name, value in start.items():
                if name in NORM:  # a newcomer's are the initial ones: nobody's statistics reach it
                    assert torch.equal(value, last.get(k, initial)[name])
                elif name.startswith(("backbone.", "projection.")):
                    assert torch.equal(value, progress.server.model[name])
        server.step(progress)
        for k in upcoming:
            kept = server.store.get(k)
            assert kept is not None
            last[k] = kept
    assert (
        len(last) > 2 and max(int(model["backbone.norm.num_batches_tracked"]) for model in last.values()) > 3
    )


def test_the_global_model_is_evaluated_with_the_rounds_mean(npz: Path) -> None:
    server = serve(tiny(npz, model="norm", algorithm="fedavg", batchnorm="local", sample=2))
    progress = server.begin()
    record = server.step(progress)
    sizes = [int(server.federation.train.sizes[k]) for k in record["clients"]]
    for name in NORM - {"backbone.norm.num_batches_tracked"}:
        kept = [server.store.get(k)[name].double() for k in record["clients"]]  # type: ignore[index]
        expected = sum(n * value for n, value in zip(sizes, kept, strict=True)) / sum(sizes)
        torch.testing.assert_close(progress.server.model[name].double(), expected, rtol=1e-5, atol=1e-7)


def test_a_newcomer_is_scored_on_the_union_with_its_own_batchnorm(npz: Path) -> None:
    # of this seed the untrained model predicts several classes
    chosen = tiny(npz, model="norm", algorithm="fedrep", batchnorm="local", sample=1, epochs=4, seed=4)
    server = serve(chosen)
    progress = server.begin()
    server.step(progress)
    scorer, model = server.scorer, progress.server.model
    own, mean_of_round = (
        scorer.right(scorer.by_global(seen, scorer.union), scorer.union)
        for seen in (model | server.own_norm, model)
    )
    assert not torch.equal(own, mean_of_round)
    newcomers = progress.right_on_union[progress.visited == 0]
    assert torch.equal(newcomers, own.expand(3, -1))


def test_first_rounds_of_local_and_averaged_are_the_same(npz: Path) -> None:
    local, averaged = (
        play(serve(tiny(npz, model="norm", algorithm="fedavg", batchnorm=policy)), 2)[1]
        for policy in ("local", "averaged")
    )
    assert local[0]["GA"] == averaged[0]["GA"] and local[0]["train_loss"] == averaged[0]["train_loss"]
    assert local[1]["train_loss"] != averaged[1]["train_loss"]


def test_centralised_has_one_batchnorm_whatever_the_policy(npz: Path) -> None:
    local, averaged = (
        play(serve(tiny(npz, model="norm", algorithm="centralised", batchnorm=policy)), 3)[0].server.model
        for policy in ("local", "averaged")
    )
    assert all(torch.equal(local[name], averaged[name]) for name in local)


def test_the_best_model_is_fine_tuned_with_the_batchnorm_of_its_round(npz: Path, tmp_path: Path) -> None:
    experiment = tiny(npz, model="norm", algorithm="fedavg", batchnorm="local", sample=2, rounds=4)
    folder, server = RunFolder(tmp_path), serve(experiment)
    folder.make_folders()
    store = FolderStore(folder.clients)
    server.store = store
    progress = server.begin()
    in_round: dict[int, dict[int, State]] = {}
    for round in range(1, 5):
        record = server.step(progress)
        folder.append(record)
        progress.best_GA = 101.0  # no other round is the best but the second
        if round == 2:
            progress.keep_best(102.0)
        in_round[round] = {k: norm_of(server.store.get(k) or server.own_norm) for k in range(4)}
        reached = folder.checkpoints.reached(progress, store, 1.0)
        snapshot = folder.checkpoints.snapshot(reached, store, {"data": "", "settings": {}})
        folder.checkpoints.save(snapshot, store)
    assert any(not same(in_round[2][k], in_round[4][k]) for k in range(4))
    checkpoint = folder.checkpoints.newest()
    assert checkpoint is not None
    for held in (progress, checkpoint.progress):
        started: dict[int, dict[int, State]] = {}
        train = server.engine.train

        def watched(plan: Plan, jobs: Sequence[Job], train: Any = train, started: Any = started) -> Any:
            started[plan.round] = {job.client: norm_of(job.start) for job in jobs}
            return train(plan, jobs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.engine, "train", watched)
            server.finish(held)
        for round in (2, 4):
            assert all(same(started[round][k], in_round[round][k]) for k in range(4)), round


@pytest.mark.parametrize("policy", ["local", "group"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_runs_and_resumes(npz: Path, tmp_path: Path, name: str, policy: str) -> None:
    experiment = tiny(npz, model="norm", algorithm=name, batchnorm=policy, sample=2, rounds=4)
    run(experiment, tmp_path / "whole")
    run_cut(experiment, tmp_path / "cut", at=3)
    resume(tmp_path / "cut")
    assert outcome_of(tmp_path / "whole") == outcome_of(tmp_path / "cut")


def test_another_policy_is_an_error(npz: Path) -> None:
    with pytest.raises(UserError, match=r"batchnorm: should be 'averaged', 'local' or 'group', not 'none'"):
        tiny(npz, batchnorm="none")
