import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgela.errors import UserError
from fedgela.geometry import (
    PhiForm,
    angle_matrix,
    class_angles,
    class_means,
    mean_angle,
    phi,
    simplex_etf,
)

# -- simplex ETF ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("C", "d"), [(2, 2), (2, 84), (10, 10), (10, 84), (100, 512), (1000, 1000)])
def test_etf_has_unit_columns_and_equal_cosines(C: int, d: int) -> None:
    M = simplex_etf(d, C, seed=3)
    assert M.shape == (d, C)
    assert M.dtype == torch.float32
    gram = M.double().T @ M.double()  # of the float32 result, or its rounding would not be seen
    expected = torch.full((C, C), -1 / (C - 1), dtype=torch.float64).fill_diagonal_(1.0)
    assert (gram - expected).abs().max() < 1e-6


def test_etf_vectors_sum_to_zero() -> None:
    assert simplex_etf(84, 10, seed=0).double().sum(dim=1).abs().max() < 1e-6


def test_etf_depends_on_its_own_seed_only() -> None:
    torch.manual_seed(1)
    first = simplex_etf(84, 10, seed=7)
    torch.manual_seed(2)
    assert torch.equal(first, simplex_etf(84, 10, seed=7))
    assert not torch.allclose(first, simplex_etf(84, 10, seed=8), atol=0.1)


def test_etf_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    simplex_etf(16, 4, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_etf_in_double_is_exact_to_double() -> None:
    M = simplex_etf(84, 10, seed=0, dtype=torch.float64)
    assert M.dtype == torch.float64
    assert ((M.T @ M)[0, 1] + 1 / 9).abs() < 1e-14


@pytest.mark.parametrize(("C", "d"), [(10, 9), (100, 84)])
def test_etf_with_too_few_dimensions_names_both_numbers(C: int, d: int) -> None:
    with pytest.raises(UserError, match=rf"{C} classes.*not {d}"):
        simplex_etf(d, C, seed=0)


@pytest.mark.parametrize("C", [1, 0, -3])
def test_etf_of_fewer_than_two_classes_is_an_error(C: int) -> None:
    with pytest.raises(UserError, match=f"at least 2 classes, not {C}$"):
        simplex_etf(84, C, seed=0)


# -- Phi -----------------------------------------------------------------------------------------------

COUNTS = torch.tensor([[6, 3, 0, 3], [0, 0, 8, 0]])  # x = .5 .25 0 .25 and 0 0 1 0


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("power:1", [[2, 1, 0, 1], [0, 0, 4, 0]]),
        ("power:2", [[4, 1, 0, 1], [0, 0, 16, 0]]),
        ("power:0.5", [[math.sqrt(2), 1, 0, 1], [0, 0, 2, 0]]),
        ("even", [[4 / 3, 4 / 3, 0, 4 / 3], [0, 0, 4, 0]]),
        ("power:0", [[1, 1, 1, 1], [1, 1, 1, 1]]),  # FedGE: missing classes too
        ("exp", [[math.exp(0.5), math.exp(0.25), 1, math.exp(0.25)], [1, 1, math.e, 1]]),
    ],
)
def test_phi_of_local_forms(form: str, expected: list[list[float]]) -> None:
    lengths = phi(COUNTS, form)
    assert lengths.dtype == torch.float32
    torch.testing.assert_close(lengths, torch.tensor(expected, dtype=torch.float32))


def test_phi_is_the_papers_by_default() -> None:
    assert torch.equal(phi(COUNTS), phi(COUNTS, "power:1"))


@pytest.mark.parametrize(
    ("form", "Q"), [("paper-linear", float), ("paper-sqrt", math.sqrt), ("paper-exp", math.exp)]
)
def test_phi_of_normalised_forms(form: str, Q: Callable[[float], float]) -> None:
    p = [12 / 20, 8 / 20]
    x = [[0.5, 0.25, 0, 0.25], [0, 0, 1, 0]]
    normaliser = [sum(p[k] * Q(x[k][c]) for k in range(2)) for c in range(4)]
    expected = [[Q(x[k][c]) / normaliser[c] for c in range(4)] for k in range(2)]
    lengths = phi(COUNTS, form, normaliser=torch.tensor(normaliser, dtype=torch.float64))
    torch.testing.assert_close(lengths, torch.tensor(expected, dtype=torch.float32))


def test_the_linear_normalised_form_is_the_papers_where_all_have_as_much_of_every_class() -> None:
    counts = torch.tensor([[6, 3, 0], [0, 3, 6]])
    normaliser = torch.full((3,), 1 / 3, dtype=torch.float64)  # n_c / n
    torch.testing.assert_close(phi(counts, "paper-linear", normaliser=normaliser), phi(counts, "power:1"))


def test_phi_of_one_client_equals_its_row_of_many() -> None:
    for form in ("power:1", "power:0.3", "exp"):
        assert torch.equal(phi(COUNTS[0], form), phi(COUNTS, form)[0])


def test_even_lengths_are_rounded_once() -> None:
    counts = torch.tensor([5, 1, 2] + 7 * [0])
    lengths = phi(counts, "even")[:3]
    assert torch.equal(lengths, torch.tensor(3 * [10 / 3]))  # not 10 times the float32 of 1 / 3


def test_phi_floor_lifts_what_is_below_it_and_nothing_else() -> None:
    assert phi(COUNTS, floor=0.25)[0].tolist() == [2, 1, 0.25, 1]
    assert phi(COUNTS, floor=1.5).tolist() == [[2, 1.5, 1.5, 1.5], [1.5, 1.5, 4, 1.5]]


def test_phi_of_a_client_without_samples_is_as_if_it_had_all_classes_alike() -> None:
    counts = torch.tensor([[0, 0, 0, 0], [3, 3, 3, 3]])
    for form in ("power:1", "power:0.5", "even", "exp"):
        nobody, everybody = phi(counts, form)
        assert torch.equal(nobody, everybody)
    assert phi(counts)[0].tolist() == [1, 1, 1, 1]


def test_normalised_phi_of_a_class_nobody_has_is_zero() -> None:
    counts = torch.tensor([[3, 0], [5, 0]])
    lengths = phi(counts, "paper-sqrt", normaliser=torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert lengths.tolist() == [[1, 0], [1, 0]]


def test_normalised_phi_without_normaliser_is_an_error() -> None:
    with pytest.raises(ValueError, match="normaliser"):
        phi(COUNTS, "paper-exp")


def test_only_normalised_forms_share() -> None:
    forms = ("power:1", "exp", "even", "paper-linear", "paper-sqrt", "paper-exp")
    assert [form for form in forms if PhiForm.parse(form).shares] == [
        "paper-linear",
        "paper-sqrt",
        "paper-exp",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "power",
        "power:",
        "power:x",
        "power:-1",
        "power:11",
        "power:nan",
        "power:inf",
        "power:1:2",
        "exp:1",
        "sqrt",
        "paper",
        "paper-log",
        "linear",
        "POWER:1",
        "paper-sqrt:2",
    ],
)
def test_a_bad_form_is_named_with_the_right_ones(text: str) -> None:
    right = r"'power:p'.*'exp', 'even', 'paper-linear', 'paper-sqrt' or 'paper-exp'"
    with pytest.raises(ValueError, match=right) as error:
        PhiForm.parse(text)
    assert repr(text) in str(error.value)


federations = st.integers(2, 8).flatmap(
    lambda C: st.lists(st.lists(st.integers(0, 500), min_size=C, max_size=C), min_size=1, max_size=8)
)


@given(federations)
def test_averaged_phi_is_C_times_the_class_share(rows: list[list[int]]) -> None:
    counts = torch.tensor(rows)
    assume(counts.sum() > 0)
    p = counts.sum(dim=1).double() / counts.sum()
    averaged = p @ phi(counts, "power:1").double()
    share = counts.sum(dim=0).double() / counts.sum()
    torch.testing.assert_close(averaged, counts.shape[1] * share, atol=1e-6, rtol=1e-6)


@given(federations, st.sampled_from(["paper-linear", "paper-sqrt", "paper-exp"]))
def test_averaged_normalised_phi_is_one_for_every_class_somebody_has(
    rows: list[list[int]], form: str
) -> None:
    counts = torch.tensor(rows)
    assume(counts.sum() > 0)
    p = counts.sum(dim=1).double() / counts.sum()
    normaliser = p @ PhiForm.parse(form).Q(counts)
    averaged = (p @ phi(counts, form, normaliser=normaliser).double())[counts.sum(dim=0) > 0]
    torch.testing.assert_close(averaged, torch.ones_like(averaged), atol=1e-6, rtol=1e-6)


# -- angles --------------------------------------------------------------------------------------------


def slow_mean_angle(vectors: np.ndarray, members: list[int]) -> float:
    """Pair by pair, as one would write it on paper."""
    angles = []
    for i, j in itertools.combinations(members, 2):
        a, b = vectors[i], vectors[j]
        lengths = math.sqrt(a @ a) * math.sqrt(b @ b)
        if lengths > 0:
            angles.append(math.degrees(math.acos(max(-1.0, min(1.0, a @ b / lengths)))))
    return sum(angles) / len(angles) if angles else math.nan


def slow_class_angles(vectors: np.ndarray, present: np.ndarray) -> dict[str, float]:
    return {
        "existing": slow_mean_angle(vectors, np.flatnonzero(present).tolist()),
        "missing": slow_mean_angle(vectors, np.flatnonzero(~present).tolist()),
        "all": slow_mean_angle(vectors, list(range(len(present)))),
    }


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 5))
def test_angles_equal_a_loop_over_pairs(seed: int, C: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(C, d))
    vectors[rng.random(C) < 0.2] = 0  # some classes without a direction
    present = rng.random(C) < 0.5
    got = class_angles(torch.from_numpy(vectors), torch.from_numpy(present))
    for group, expected in slow_class_angles(vectors, present).items():
        np.testing.assert_allclose(got[group].item(), expected, atol=1e-5, err_msg=group)


def test_angles_of_an_etf_are_those_of_its_cosine() -> None:
    angles = angle_matrix(simplex_etf(84, 10, seed=0).T)
    distinct = ~torch.eye(10, dtype=torch.bool)
    expected = math.degrees(math.acos(-1 / 9))
    torch.testing.assert_close(angles[distinct], torch.full((90,), expected).double(), atol=1e-4, rtol=0)


def test_vectors_without_length_are_left_out() -> None:
    vectors = torch.tensor([[1.0, 0], [0, 0], [0, 2], [-3, 0]])
    assert angle_matrix(vectors)[1].isnan().all()
    everyone = torch.ones(4, dtype=torch.bool)
    assert mean_angle(angle_matrix(vectors), everyone).item() == pytest.approx((90 + 180 + 90) / 3)


def test_no_pair_has_no_angle() -> None:
    vectors = torch.eye(3)
    angles = class_angles(vectors, torch.tensor([True, False, False]))
    assert angles["existing"].isnan()  # one class is no pair
    assert angles["missing"].item() == pytest.approx(90)
    assert class_angles(torch.zeros(3, 2), torch.ones(3, dtype=torch.bool))["all"].isnan()


def test_parallel_vectors_have_angles_of_0_and_180_not_nan() -> None:
    v = torch.tensor([0.1, 0.2, 0.3])  # its cosine with itself rounds to above 1
    angles = angle_matrix(torch.stack([v, 7 * v, -v]))
    assert angles[0, 1].item() == pytest.approx(0, abs=1e-5)
    assert angles[0, 2].item() == pytest.approx(180, abs=1e-5)


def test_angles_do_not_depend_on_lengths_even_tiny_ones() -> None:
    vectors = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([1e-30, 1e-3, 1, 1e3, 1e18])[:, None]
    torch.testing.assert_close(angle_matrix(vectors * scale), angle_matrix(vectors), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shared", [False, True], ids=["a classifier a client", "one classifier"])
def test_batched_angles_equal_one_by_one(shared: bool) -> None:
    g = torch.Generator().manual_seed(0)
    vectors = torch.randn(6, 5, generator=g) if shared else torch.randn(4, 6, 5, generator=g)
    present = torch.rand(4, 6, generator=g) < 0.5
    batched = class_angles(vectors, present)
    for k in range(4):
        alone = class_angles(vectors if shared else vectors[k], present[k])
        for group in ("existing", "missing"):
            torch.testing.assert_close(batched[group][k], alone[group], equal_nan=True)
        torch.testing.assert_close(batched["all"].expand(4)[k], alone["all"])


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 30))
def test_class_means_equal_a_loop(seed: int, C: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    features, labels = rng.normal(size=(n, 3)), rng.integers(0, C, n)
    means = class_means(torch.from_numpy(features), torch.from_numpy(labels), C)
    assert means.shape == (C, 3)
    for c in range(C):
        mine = [features[i] for i in range(n) if labels[i] == c]
        expected = np.mean(mine, axis=0) if mine else np.zeros(3)  # zero for a class without samples
        np.testing.assert_allclose(means[c].numpy(), expected, atol=1e-12)
