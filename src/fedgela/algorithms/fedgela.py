"""FedGELA: a classifier fixed globally as a simplex ETF, its lengths adapted locally to each client.

Fan et al., Federated Learning with Bilateral Curation for Partially Class-Disjoint Data, NeurIPS 2023.

    W   = sqrt(E_W) M                                                     (global ETF, never trained)
    W_k = Phi_k W,   Phi_kc = C n_kc / n_k                                 (Eq. 4, local adaptation)
    min over H_k of   1/n_k sum_i -log softmax_c(Phi_kc W_c^T h_i)[y_i],   |h_i| = 1        (Eq. 5)

Only the backbone H travels. Output: (H, W), the global model, and (H_k, Phi_k W), the personal ones.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional as F

from fedgela.algorithms.fedavg import Beside, FedAvg, Grid, PersonalOf, cross_entropy
from fedgela.geometry import PhiForm, phi, simplex_etf
from fedgela.models import Net, State

DEFAULT_E_W = 10.0  # chosen on validation data (docs/fedgela.md)

FeatureNorm = Literal["l2", "batchnorm", "none"]
Among = Literal["all", "present"]  # classes: all C, or those of C_k, as Eq. 5 sums over


class FeatureBatchNorm(nn.BatchNorm1d):
    """BatchNorm over features; a batch of one sample, which has no variance, takes the running ones."""

    def forward(self, z: Tensor) -> Tensor:
        if self.training and len(z) == 1:
            return F.batch_norm(z, self.running_mean, self.running_var, self.weight, self.bias)
        return super().forward(z)


class L2Norm(nn.Module):
    """h = z / |z|: features of unit length, E_H = 1."""

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1)


class Head(nn.Module):
    """logits = W^T norm(z), [B, C], with W [d, C] either the fixed sqrt(E_W) M or learnable."""

    def __init__(self, norm: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.classifier = classifier

    def forward(self, z: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.norm(z))
        return logits


class FixedClassifier(nn.Module):
    """A linear layer without bias whose weight [C, d] is no parameter: no step can ever move it."""

    weight: Tensor

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", W.T.contiguous())

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weight)


@dataclass(frozen=True)
class FedGELA(FedAvg):
    """The switches `etf` and `adapt` give the paper's ablation: FedGE is etf without adapt, the third
    row adapt without etf (Phi on FedAvg's learnable head), and neither is FedAvg."""

    name: ClassVar[str] = "fedgela"
    title: ClassVar[str] = "FedGELA"
    PA_of: ClassVar[PersonalOf] = "local"
    keeps_model: ClassVar[bool] = True

    grid: ClassVar[Grid] = {
        "E_W": (10.0, 1.0, 100.0),
        "phi": ("power:1", "power:0.5"),
    }

    etf: bool = True
    adapt: bool = True
    E_W: Annotated[float, Gt(0)] | None = None
    logit_scale: Annotated[float, Gt(0)] | None = None  # sqrt(E_W), the same by another name
    phi: str = "power:1"
    phi_floor: Annotated[float, Ge(0)] = 0.0
    feature_norm: FeatureNorm | None = None
    softmax: Among = "all"
    personal_prediction: Among = "all"

    def __post_init__(self) -> None:
        PhiForm.parse(self.phi)
        if not self.etf and (self.E_W is not None or self.logit_scale is not None):
            raise ValueError("E_W and logit_scale are lengths of the ETF: they need etf = true")
        if not self.adapt and (self.phi, self.phi_floor) != ("power:1", 0.0):
            raise ValueError("phi and phi_floor are of the local adaptation: they need adapt = true")
        if self.E_W is not None and self.logit_scale is not None:
            raise ValueError("give E_W or logit_scale (which is sqrt(E_W)), not both")
        # from here on E_W alone gives the length, and no option is left open, as a resolved config needs
        if self.logit_scale is not None:
            E_W = self.logit_scale * self.logit_scale
            if not 0 < E_W < math.inf:
                raise ValueError(f"logit_scale: the square of {self.logit_scale:g} is out of range")
            object.__setattr__(self, "E_W", E_W)
            object.__setattr__(self, "logit_scale", None)
        if self.E_W is None and self.etf:
            object.__setattr__(self, "E_W", DEFAULT_E_W)
        if self.feature_norm is None:
            object.__setattr__(self, "feature_norm", "l2" if self.etf else "none")

    def searched(self, epochs: int) -> Grid:
        """The grid without E_W where there is no ETF, and without phi where nothing is adapted."""
        useless = {"E_W": not self.etf, "phi": not self.adapt}
        return {names: values for names, values in self.grid.items() if not useless.get(names)}

    def head(self, d: int, C: int, seed: int) -> nn.Module:
        norm: nn.Module = nn.Identity()
        if self.feature_norm == "l2":
            norm = L2Norm()
        elif self.feature_norm == "batchnorm":
            norm = FeatureBatchNorm(d)
        if self.E_W is None:
            return Head(norm, nn.Linear(d, C))
        # float32 holds the ETF's cosines to 1e-8; sqrt(E_W) only sets its length
        return Head(norm, FixedClassifier(self.E_W**0.5 * simplex_etf(d, C, seed)))

    def travels(self, entry: str) -> bool:
        return not (self.etf and entry.startswith("head.classifier."))

    def shares(self) -> str | None:
        if self.adapt and PhiForm.parse(self.phi).shares:
            return f"phi = {self.phi!r}: each client's Q(n_kc / n_k), which tells its class distribution"
        return None

    def in_vain(self, classes: int) -> str | None:
        """Of two classes the ETF's vectors are opposite, and logits differ by the sum of their lengths, which
        is C on every client for these forms."""
        always_C = PhiForm.parse(self.phi) in (PhiForm("power"), PhiForm("even")) and self.phi_floor == 0
        if classes == 2 and self.etf and self.adapt and always_C:
            return (
                f"with two classes phi = {self.phi!r} has no effect, as with adapt = false: the two vectors "
                "are opposite, so that only the sum of their lengths counts, which is 2 on every client"
            )
        return None

    def statistics(self, counts: Tensor) -> State:
        form = PhiForm.parse(self.phi)
        return {"phi_normaliser": form.Q(counts)} if self.adapt and form.shares else {}

    def client_vectors(self, counts: Tensor, server: State) -> State:
        # a client without samples may be tested on any class
        present = (counts > 0) | (counts.sum(dim=-1, keepdim=True) == 0)
        if not self.adapt:
            return {"phi": torch.ones_like(counts, dtype=torch.float32), "present": present}
        normaliser = server.get("phi_normaliser")
        if normaliser is not None:
            normaliser = normaliser.to(counts.device).double()
        lengths = phi(counts, self.phi, self.phi_floor, normaliser)
        return {"phi": lengths, "present": present}

    def adapted(self, logits: Tensor, client: State, among: Among) -> Tensor:
        """(Phi_k W)^T h from W^T h, [B, C]: a missing class has logit 0, or among those present takes no
        part."""
        adapted = client["phi"] * logits
        return adapted if among == "all" else adapted.masked_fill(~client["present"], -torch.inf)

    def loss(self, net: Net, x: Tensor, y: Tensor, client: State) -> Tensor:
        return cross_entropy(self.adapted(net(x), client, self.softmax), y)

    def predict_personal(self, net: Net, x: Tensor, client: State) -> Tensor:
        return self.adapted(net(x), client, self.personal_prediction)

    def classifier(self, model: State, client: State) -> Tensor:
        """Phi_k W. A vector of length 0 has no direction, and no angle is counted for it."""
        W = model["head.classifier.weight"]
        return client["phi"][:, None] * W if client else W


@dataclass(frozen=True)
class FedGE(FedGELA):
    """The ablation with the global ETF only."""

    name: ClassVar[str] = "fedge"
    title: ClassVar[str] = "FedGE"
    grid: ClassVar[Grid] = {"E_W": (10.0, 1.0, 100.0, 3.0, 30.0, 1000.0)}
    beside: ClassVar[Beside] = ("PA_finetuned",)
    adapt: bool = False

    def __post_init__(self) -> None:
        if self.adapt:
            raise ValueError("fedge does not adapt: adapt = true is fedgela")
        super().__post_init__()


@dataclass(frozen=True)
class FedLA(FedGELA):
    """The ablation with the local adaptation only: Phi_k on a learnable head."""

    name: ClassVar[str] = "fedla"
    title: ClassVar[str] = "FedLA"
    grid: ClassVar[Grid] = {"phi": ("power:1", "power:0.5", "exp")}
    beside: ClassVar[Beside] = ("PA_finetuned",)
    etf: bool = False

    def __post_init__(self) -> None:
        if self.etf:
            raise ValueError("fedla has a learnable head: etf = true is fedgela")
        super().__post_init__()
