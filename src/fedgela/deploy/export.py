"""Exporting a trained model to one file that needs nothing of this package: ONNX, or PyTorch's own .pt2."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from fedgela.deploy.card import CARD, Card
from fedgela.deploy.exported import EXPORTED, of_content, quiet
from fedgela.deploy.model import Model, files_of, trained_model
from fedgela.deploy.predictor import Predictor, Which
from fedgela.errors import UserError, first_line
from fedgela.files import check_file, write_atomically
from fedgela.inputs import InputSpec

CHECKED = 32  # samples that the file is asked before it is written
TOLERANCE = 1e-4  # in probability; rounding alone gives 1e-6


def export(
    path: Path, out: Path, client: int | str | None = None, which: Which = "last"
) -> tuple[Card, float]:
    """Write a run's model to `out`, whose suffix says the format; what is written is read first and asked.
    Returns its card, and the largest difference to the model in any probability."""
    if out.suffix not in EXPORTED:
        raise UserError(f"--out: a file ending in {' or '.join(EXPORTED)}, not {out.name!r}")
    check_file(out, "an .onnx or .pt2", *files_of(path))
    _require(out.suffix)
    card, predictor, _ = trained_model(path, client, which)
    samples = _samples(card.input, predictor)
    with quiet():
        program = _program(predictor, samples)
        content = _as_onnx(program, card) if out.suffix == ".onnx" else _as_pt2(program, card)
    written = Model(*of_content(content, out.suffix))
    with torch.no_grad():
        apart = float((written.probabilities(samples) - predictor(samples)).abs().max())
    if not apart <= TOLERANCE:
        raise UserError(f"the exported model differs from the run's by {apart:.2g} in a probability")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    return card, apart


def _require(suffix: str) -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if suffix == ".onnx" and missing:
        raise UserError(
            f"--out: {missing[0]} is needed for .onnx: pip install 'fedgela[export]'; .pt2 needs nothing more"
        )


def _program(predictor: Predictor, samples: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    predictor = predictor.requires_grad_(False)  # who uses the file does not train
    with _told("this model cannot be exported", "`fedgela predict RUN` can use it"):
        return torch.export.export(predictor, (samples,), dynamic_shapes={"x": {0: batch}})


def _as_pt2(program: torch.export.ExportedProgram, card: Card) -> bytes:
    # into memory: on a full disk PyTorch's own writer takes the whole process down
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={CARD: card.to_json()})
    return content.getvalue()


def _as_onnx(program: torch.export.ExportedProgram, card: Card) -> bytes:
    with _told("this model has no form in ONNX", "a .pt2 file may hold it"):
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["x"], output_names=["probabilities"]
        )
    assert exported is not None
    exported.model.metadata_props[CARD] = card.to_json()
    content: bytes = exported.model_proto.SerializeToString()
    return content


@contextmanager
def _told(what: str, instead: str) -> Iterator[None]:
    """Whatever an exporter raises, of a model whose steps depend on values, say, as a user's mistake."""
    try:
        yield
    except Exception as error:
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__  # the first cause says it best
        raise UserError(f"{what} ({first_line(error)}); {instead}") from None


def _samples(spec: InputSpec, predictor: Predictor) -> Tensor:
    """Drawn; features as in training, since elsewhere every sample may have the same answer."""
    draw = torch.Generator().manual_seed(0)
    size = (CHECKED, *spec.shape)
    if spec.kind == "features":
        return predictor.centre + torch.randn(size, generator=draw) / predictor.scale
    if spec.kind == "tokens":
        return torch.randint(spec.vocabulary, size, generator=draw)
    return torch.randint(256, size, generator=draw, dtype=torch.uint8)
