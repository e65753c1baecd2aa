"""Central differential privacy: what is clipped, what is noised, and the epsilon that is told."""

import secrets
from copy import deepcopy
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

from fedgela.algorithms import Update
from fedgela.errors import UserError
from fedgela.flower.privacy import CentralPrivacy, Releases
from fedgela.flower.server_app import check_possible
from fedgela.flower.terms import RELEASES
from fedgela.models import State
from flower.sites import Played, small

pytestmark = pytest.mark.usefixtures("quick")


def update(k: int, value: float) -> Update:
    return Update(k, 10 + k, {"w": torch.full((4,), value)})


def together(privacy: CentralPrivacy, before: State, updates: list[Update], sites: int) -> State:
    return privacy.noisy(before, privacy.clipped(before, updates), sites).model


def test_changes_are_clipped_count_alike_and_get_noise() -> None:
    before = {"w": torch.zeros(4)}
    quiet = CentralPrivacy(noise=1e-9, clip=1.0)
    # (0.5, 0.5, 0.5, 0.5) is of length 1: the first is cut to it, the second, of length 0.2, is not
    both = together(quiet, before, [update(0, 9.0), update(1, 0.1)], sites=2)
    torch.testing.assert_close(both["w"], torch.full((4,), 0.3))
    loud = CentralPrivacy(noise=2.0, clip=3.0)
    wide = {"w": torch.zeros(40_000)}
    noisy = together(loud, wide, [Update(0, 1, {"w": torch.zeros(40_000)})], sites=4)["w"]
    assert noisy.std().item() == pytest.approx(2.0 * 3.0 / 4, rel=0.03)
    again = together(loud, wide, [Update(0, 1, {"w": torch.zeros(40_000)})], sites=4)["w"]
    assert not torch.equal(noisy, again)


def test_noise_is_finite_whatever_bytes_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\0", b"\xff"):
        monkeypatch.setattr(secrets, "token_bytes", lambda count, byte=byte: byte * count)
        noisy = together(CentralPrivacy(noise=1.0, clip=1.0), {"w": torch.zeros(4)}, [], sites=1)["w"]
        assert noisy.isfinite().all()


def test_the_spent_epsilon_is_told_every_round(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    server = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=0.1).server()
    progress = server.begin()
    spent = [server.step(progress)["epsilon"] for _ in range(3)]
    assert spent == sorted(spent)
    # the Gaussian mechanism's known figure: three rounds at noise 1 and delta 1e-5
    assert spent[-1] == pytest.approx(9.0, abs=0.3)


def moved(before: State, after: State) -> State:
    return {name: after[name] - value for name, value in before.items()}


def length(state: State) -> float:
    return float(torch.cat([value.flatten() for value in state.values()]).norm())


@pytest.mark.parametrize("absent", range(3))
def test_an_absent_site_changes_the_sum_by_no_more_than_the_clip(absent: int, whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    clip = 0.01
    changes = []
    for offline in (set(), {absent}):
        played = Played(whole.parent, small(whole, algorithm="fedavg"), whole, dp_noise=1e-9, dp_clip=clip)
        server = played.server()
        progress = server.begin()
        before = progress.server.model
        played.grid.offline = offline
        server.step(progress)
        changes.append(moved(before, progress.server.model))
    assert length(moved(*changes)) * 3 <= clip * 1.001


def test_a_round_without_any_answer_has_noise_too(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=3.0)
    server = played.server()
    progress = server.begin()
    before = progress.server.model
    played.grid.tamper = {k: lambda answer: b"" for k in range(3)}
    record = server.step(progress)
    change = moved(server.travelling(before), progress.server.model)
    numbers = sum(value.numel() for value in change.values())
    assert length(change) / numbers**0.5 == pytest.approx(3.0 / 3, rel=0.1)
    assert record["epsilon"] == server.privacy.epsilon(1)


def test_a_round_that_is_done_again_after_a_kill_counts_again(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = Played(whole.parent, small(whole), whole, dp_noise=1.0, dp_clip=0.1)
    server = played.server()
    progress = server.begin()
    server.step(progress)
    kept = deepcopy(progress)  # the checkpoint
    server.step(progress)  # whose models sites may have seen when the server is killed
    again = played.server()
    assert again.step(kept)["round"] == 2
    assert again.step(kept)["epsilon"] == pytest.approx(CentralPrivacy(1.0, 0.1).epsilon(4))


def test_a_noisy_model_is_counted_before_anybody_sees_it(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    played = Played(whole.parent, small(whole), dp_noise=1.0, dp_clip=0.1)  # the sites score it
    server = played.server()
    counted = []
    played.grid.tamper[0] = lambda answer: counted.append(Releases(whole.parent / RELEASES).count) or answer
    server.step(server.begin())
    assert counted == [0, 1]  # when it has trained, and when it has scored


def test_what_noise_does_not_protect_is_refused(whole: Path) -> None:
    pytest.importorskip("dp_accounting")
    terms = Played(whole.parent, small(whole), dp_noise=1.0).terms
    for changes, why in (
        ({"algorithm": "fedproto"}, "shares more than weights"),
        ({"aggregation": "median"}, "for a plain mean of clipped changes"),
        # of a draw among those that are there, an absent site would change who else takes part
        ({"sample": 2}, "all 3 sites take part in every round"),
    ):
        with pytest.raises(UserError, match=why):
            check_possible(small(whole, **changes), terms)
    norm = {"algorithm": {"name": "fedgela", "feature_norm": "batchnorm"}}
    with pytest.raises(UserError, match="running_mean is a statistic of the data"):
        Played(whole.parent, small(whole, **norm), whole, dp_noise=1.0).server()
