"""The right sides of Theorems 1 to 4, as the paper prints them, and of the theorem they build on.

Theorem 1 follows Li et al. 2020 (On the Convergence of FedAvg on Non-IID Data, Theorem 1), in which T counts
SGD steps and heterogeneity is Gamma = F* - sum_k p_k F_k*. The paper's T counts rounds, and its B has
Gamma_1, a distance, in Gamma's place.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the bounds are made of: each the smallest value known to hold on this problem and this run."""

    L: float  # for all H: 1/2 |Phi_k W|_2^2 lambda_max(1/n_k sum x x^T) + mu, the largest of all clients
    mu: float  # the weight of |H|^2 / 2
    sigma_squared: float  # largest variance of a batch's gradient on the run's steps, by enumeration
    G_squared: float  # largest E |gradient of a batch|^2 on the run's steps, by enumeration
    Gamma: float  # F* - sum_k p_k F_k* of the objective that is trained, as in Lemma 4
    Gamma_1: float  # largest |W_k* - W*|, body and head (Assumption 4)
    Gamma_2: float  # largest |grad F_k before - after aggregation| on the run (Assumption 4)
    loss_jump: float  # largest |F_k before - after aggregation|: what the proof of Theorem 2 calls Gamma_1
    loss_offset: float  # largest |F_k(W*) - F_k*|: what the proof of Theorem 4 calls Gamma_2
    G_at_optima: float  # Theorem 3's G = 2 sum_k p_k E |gradient of a batch at W_k*|^2
    p_k: list[float]
    adaptation: list[float]  # |Phi_k W - W| of every client
    distance_squared: float  # |W^1 - W*|^2
    own_distance_squared: float  # from the start to the minimum of the objective that is trained

    @property
    def kappa(self) -> float:
        return self.L / self.mu


@dataclass(frozen=True)
class Terms:
    """B of Theorems 1 and 3 by its terms."""

    noise: float  # sum_k p_k^2 sigma^2
    adaptation: float  # sum_k p_k |Phi_k W - W|
    heterogeneity: float  # 6 L Gamma_1
    drift: float  # 8 (E-1)^2 G^2

    @property
    def total(self) -> float:
        return self.noise + self.adaptation + self.heterogeneity + self.drift


def B_of_theorem_1(c: Constants, E: int) -> Terms:
    """B = sum_k (p_k^2 sigma^2 + p_k |Phi_k W - W|) + 6 L Gamma_1 + 8 (E-1)^2 G^2."""
    return Terms(
        noise=sum(p**2 for p in c.p_k) * c.sigma_squared,
        adaptation=sum(p * a for p, a in zip(c.p_k, c.adaptation, strict=True)),
        heterogeneity=6 * c.L * c.Gamma_1,
        drift=8 * (E - 1) ** 2 * c.G_squared,
    )


def B_of_theorem_3(c: Constants, E: int) -> Terms:
    """The same with G = sum_k p_k G_k, which the paper squares once more although G_k is a square already."""
    printed = B_of_theorem_1(c, E)
    return Terms(
        printed.noise, printed.adaptation, printed.heterogeneity, 8 * (E - 1) ** 2 * c.G_at_optima**2
    )


def B_of_li(c: Constants, E: int) -> Terms:
    """Li et al.'s: Gamma in the place of Gamma_1, and nothing for the adaptation."""
    printed = B_of_theorem_1(c, E)
    return Terms(printed.noise, 0.0, 6 * c.L * c.Gamma, printed.drift)


def gamma_of_theorem_1(kappa: float, E: int) -> float:
    """gamma = max(8 kappa, E), which makes the first step 1 / (4 L) at most."""
    return max(8 * kappa, float(E))


def gamma_of_theorem_3(c: Constants, E: int) -> float:
    """gamma = 32 L^2 kappa (E-1)^2 / (k (mu - k)) - 1. The paper does not say what k is."""
    k = c.mu / 2  # which makes gamma smallest
    return 32 * c.L**2 * c.kappa * (E - 1) ** 2 / (k * (c.mu - k)) - 1


def global_bound(c: Constants, gamma: float, T: int, B: float, distance_squared: float) -> float:
    """kappa / (gamma + T - 1) (2B / mu + mu gamma / 2 |W^1 - W*|^2); T = 1 is the start."""
    return c.kappa / (gamma + T - 1) * (2 * B / c.mu + c.mu * gamma / 2 * distance_squared)


def A_of_theorem_2(c: Constants, eta: float, E: int, adaptation: float) -> float:
    """A = (eta - L/2 eta^2) E G^2 - L |Phi_k W - W|."""
    return (eta - c.L / 2 * eta**2) * E * c.G_squared - c.L * adaptation


def local_bound(c: Constants, before: float, eta: float, E: int, adaptation: float, jump: float) -> float:
    """Theorem 2: F_k^{tE} + L E eta^2 / 2 sigma^2 + Gamma_1 - A, `jump` in the place of Gamma_1."""
    noise = c.L * E * eta**2 / 2 * c.sigma_squared
    return before + noise + jump - A_of_theorem_2(c, eta, E, adaptation)


def best_decrease_of_theorem_2(c: Constants, E: int, adaptation: float) -> float:
    """The most that Theorem 2's right side can fall at any eta.

    E (eta G^2 - L/2 eta^2 (G^2 + sigma^2)) is largest at eta = G^2 / (L (G^2 + sigma^2)), where it is
    E G^4 / (2 L (G^2 + sigma^2)); L |Phi_k W - W| and Gamma_1 go off.
    """
    G, s = c.G_squared, c.sigma_squared
    return E * G**2 / (2 * c.L * (G + s)) - c.L * adaptation - c.Gamma_1


def D_of_theorem_4(c: Constants, E_W: float, adaptation: float) -> float:
    """D = Gamma_2 + |Phi_k W - W| E_w, as the theorem states it."""
    return c.Gamma_2 + adaptation * E_W
