"""What `fedgela theory` checks: the lemmas, the adapted structure and the theorems, with their settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from fedgela.theory import layer_peeled
from fedgela.theory.convergence import Check, Setting, check, make_methods
from fedgela.theory.defects import Finding, all_findings
from fedgela.theory.layer_peeled import MinorityCollapse, Solution, Structure
from fedgela.theory.structure import Plane, Spread, planes, spread

PARTS = ("lemmas", "structure", "convergence")


@dataclass(frozen=True)
class PeeledSetting:
    """The layer-peeled model's sizes."""

    C: int = 10
    d: int = 16
    per_class: int = 5  # free features a class on balanced data
    E_W: float = 10.0
    E_H: float = 1.0
    counts: tuple[int, ...] = (1000, 500, 200, 100, 50, 20, 10, 5, 2, 1)  # imbalanced data
    majority: int = 5  # classes of the minority-collapse sweep that have R samples, the others have one
    ratios: tuple[float, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    E_Ws: tuple[float, ...] = (2.0, 10.0, 50.0)


@dataclass(frozen=True)
class Peeled:
    """One row of the lemmas' table."""

    name: str
    structure: Structure
    residual: float
    etf_loss: float


@dataclass(frozen=True)
class Lemmas:
    setting: PeeledSetting
    rows: list[Peeled]
    collapse: list[MinorityCollapse]  # one for each E_W

    @property
    def minority_fixed(self) -> list[float]:
        """By ratio, the least angle over all E_W between minority features where W is fixed as the ETF."""
        return [min(angles) for angles in zip(*(c.minority_fixed for c in self.collapse), strict=True)]


@dataclass(frozen=True)
class AdaptedStructure:
    setting: PeeledSetting
    spreads: list[Spread]  # m = 2 ... C
    planes: list[Plane]


@dataclass(frozen=True)
class Convergence:
    setting: Setting
    checks: list[Check]  # FedAvg, FedGE, FedGELA
    findings: list[Finding]


@dataclass(frozen=True)
class Report:
    seed: int
    lemmas: Lemmas | None = None
    structure: AdaptedStructure | None = None
    convergence: Convergence | None = None


@dataclass(frozen=True)
class Settings:
    peeled: PeeledSetting = field(default_factory=PeeledSetting)
    convergence: Setting = field(default_factory=Setting)


def run(parts: tuple[str, ...], seed: int, settings: Settings | None = None) -> Report:
    settings = settings or Settings()
    with _one_thread():
        return Report(
            seed=seed,
            lemmas=check_lemmas(settings.peeled, seed) if "lemmas" in parts else None,
            structure=check_structure(settings.peeled, seed) if "structure" in parts else None,
            convergence=check_convergence(settings.convergence, seed) if "convergence" in parts else None,
        )


def check_lemmas(s: PeeledSetting, seed: int) -> Lemmas:
    sizes = (s.d, s.E_W, s.E_H, seed)
    rows = [
        _row("Lemma 1: balanced, W learnt", s, *layer_peeled.lemma_1(s.C, s.per_class, *sizes)),
        _row("Lemma 2: imbalanced, W = ETF", s, *layer_peeled.lemma_2(s.counts, *sizes)),
        _row("imbalanced, W learnt", s, *layer_peeled.imbalanced(s.counts, *sizes)),
    ]
    collapse = [
        layer_peeled.minority_collapse(s.ratios, s.majority, s.C - s.majority, s.d, E_W, s.E_H, seed)
        for E_W in s.E_Ws
    ]
    return Lemmas(s, rows, collapse)


def _row(name: str, s: PeeledSetting, found: Solution, structure: Structure) -> Peeled:
    return Peeled(name, structure, found.residual, layer_peeled.etf_loss(s.C, s.E_W, s.E_H))


def check_structure(s: PeeledSetting, seed: int) -> AdaptedStructure:
    spreads = [spread(s.C, m, s.d, s.E_W, s.E_H, seed) for m in range(2, s.C + 1)]
    return AdaptedStructure(s, spreads, planes(s.E_W, s.E_H))


def check_convergence(s: Setting, seed: int) -> Convergence:
    checks = [check(method, s, seed) for method in make_methods(s, seed)]
    return Convergence(s, checks, all_findings(checks, s))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors here are small: more threads would only wait for each other, and round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
