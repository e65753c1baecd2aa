"""NC1 to NC4: zero at the collapse whatever its size, and equal to loops over their definitions."""

import math

import pytest
import torch
from torch import Tensor

from fedgela.geometry import simplex_etf
from fedgela.measures import class_mean_angles, etf_angle, neural_collapse
from fedgela.measures.neural_collapse import from_etf

C, D = 5, 8


def collapsed(sizes: list[int], scale: float = 3.0, shift: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Features on an ETF, so many of each class, with the ETF itself as classifier."""
    M = simplex_etf(D, C, seed=1, dtype=torch.float64).T
    y = torch.repeat_interleave(torch.arange(C), torch.tensor(sizes))
    return scale * M[y] + shift, y, 7.0 * M


@pytest.mark.parametrize("sizes", [[4] * C, [1, 2, 3, 40, 5]])
def test_features_on_an_etf_have_collapsed(sizes: list[int]) -> None:
    found = neural_collapse(*collapsed(sizes))
    for name, value in vars(found).items():
        assert value == pytest.approx(0, abs=1e-9), name


def test_a_common_shift_of_all_features_changes_nothing_but_the_decisions() -> None:
    h, y, W = collapsed([3] * C, shift=0.4)
    found = neural_collapse(h, y, W)
    assert found.nc1 == pytest.approx(0, abs=1e-9)
    assert found.nc2_means == pytest.approx(0, abs=1e-9)
    assert found.nc3 == pytest.approx(0, abs=1e-9)


def random_case() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    y = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4])
    return torch.randn(len(y), D, generator=generator), y, torch.randn(C, D, generator=generator)


def test_equal_to_the_definitions_written_as_loops() -> None:
    h, y, W = (v.double() if v.is_floating_point() else v for v in random_case())
    means = [torch.stack([h[i] for i in range(len(y)) if y[i] == c]).mean(0) for c in range(C)]
    sigma = torch.zeros(D, D, dtype=torch.float64)
    for i in range(len(y)):
        gap = h[i] - means[int(y[i])]
        sigma += torch.outer(gap, gap) / len(y)
    centre = sum(means) / C
    nc3 = [
        ((m - centre) / (m - centre).norm() - W[c] / W[c].norm()).norm().item() for c, m in enumerate(means)
    ]
    differ = 0
    for z in h:
        by_classifier = max(range(C), key=lambda c: float(z @ W[c]))
        by_mean = min(range(C), key=lambda c: float((z - means[c]).norm()))
        differ += by_classifier != by_mean
    between = sum(float((m - centre).square().sum()) for m in means) / C

    found = neural_collapse(*random_case())
    assert found.nc1 == pytest.approx(float(sigma.trace()), rel=1e-9)
    assert found.nc1_relative == pytest.approx(float(sigma.trace()) / between, rel=1e-9)
    assert found.nc3 == pytest.approx(sum(nc3) / C, rel=1e-9)
    assert found.nc4 == pytest.approx(differ / len(y)) and 0 < differ < len(y)


def test_nc2_of_orthogonal_vectors() -> None:
    # Gram matrix I / sqrt(C) against (I - 11^T / C) / sqrt(C - 1)
    expected = math.sqrt(2 - 2 * math.sqrt((C - 1) / C))
    assert float(from_etf(torch.eye(C, D))) == pytest.approx(expected, rel=1e-6)


def test_unequal_lengths_are_no_etf() -> None:
    _, _, W = collapsed([1] * C)
    W[0] *= 2
    assert float(from_etf(W)) > 0.1


def test_wrong_directions_show_in_nc3_and_nc4_alone() -> None:
    h, y, W = collapsed([4] * C)
    found = neural_collapse(h, y, -W)
    assert found.nc3 == pytest.approx(2)
    assert found.nc4 == 1
    assert found.nc1 == pytest.approx(0, abs=1e-9) and found.nc2_classifier == pytest.approx(0, abs=1e-9)


def test_classes_without_samples_or_without_a_vector_take_no_part() -> None:
    h, y, W = random_case()
    full = neural_collapse(h, y, torch.cat([W, torch.ones(2, D)]))  # two classes that nobody has
    assert full == neural_collapse(h, y, W)
    W[4] = 0  # Phi = 0
    kept = y != 4
    assert neural_collapse(h, y, W) == neural_collapse(h[kept], y[kept], W)


def test_members_restrict_to_a_clients_own_classes() -> None:
    h, y, W = random_case()
    members = torch.tensor([True, True, False, True, False])
    kept = members[y]
    assert neural_collapse(h, y, W, members) == neural_collapse(h[kept], y[kept], W)


def test_where_there_is_nothing_to_measure_there_is_no_number() -> None:
    h, y, W = random_case()
    one = neural_collapse(h, torch.zeros_like(y), W)
    assert math.isnan(one.nc2_means) and math.isnan(one.nc3) and one.nc1 > 0
    assert one.record("server")["nc3_server"] is None
    assert all(math.isnan(v) for v in vars(neural_collapse(h[:0], y[:0], W)).values())


def test_record_names_what_metrics_hold() -> None:
    record = neural_collapse(*random_case()).record("server")
    assert set(record) == {
        "nc1_server",
        "nc1_relative_server",
        "nc2_means_server",
        "nc2_classifier_server",
        "nc3_server",
        "nc4_server",
    }


def test_float32_sums_do_not_drown_a_small_variance() -> None:
    """Far from the origin the difference of two sums of squares would be all rounding."""
    generator = torch.Generator().manual_seed(0)
    h = 1000 + 1e-3 * torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    found = neural_collapse(h, torch.zeros(2000, dtype=torch.int64), torch.ones(2, 4))
    assert found.nc1 == pytest.approx(4e-6, rel=0.1)


@pytest.mark.parametrize(("classes", "angle"), [(2, 180.0), (3, 120.0), (10, 96.379)])
def test_etf_angle(classes: int, angle: float) -> None:
    assert etf_angle(classes) == pytest.approx(angle, abs=1e-3)


def test_class_mean_angles_reach_the_etfs() -> None:
    h, y, _ = collapsed([2, 1, 7, 3, 1])
    present = torch.tensor([True, True, True, False, False])
    angles = class_mean_angles(h, y, present)
    assert {name: float(v) for name, v in angles.items()} == pytest.approx(
        dict.fromkeys(("existing", "missing", "all"), etf_angle(C)), abs=1e-5
    )


def test_class_mean_angles_of_classes_without_samples_are_left_out() -> None:
    h = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    angles = class_mean_angles(h, torch.tensor([0, 2, 2]), torch.tensor([True, True, True, False]))
    assert float(angles["existing"]) == pytest.approx(90) and float(angles["all"]) == pytest.approx(90)
    assert math.isnan(float(angles["missing"]))
