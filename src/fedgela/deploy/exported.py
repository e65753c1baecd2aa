"""Files that `fedgela export` wrote, read again: ONNX, or PyTorch's own .pt2."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgela.deploy.card import CARD, Card
from fedgela.errors import UserError, first_line

EXPORTED = (".onnx", ".pt2")
Forward = Callable[[Tensor], Tensor]  # from samples as they lie in the data to probabilities


def read_exported(path: Path) -> tuple[Card, Forward]:
    """A UserError where the file is damaged, or of somebody else."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    try:
        return of_content(path.read_bytes(), path.suffix)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def of_content(content: bytes, suffix: str) -> tuple[Card, Forward]:
    return _of_onnx(content) if suffix == ".onnx" else _of_pt2(content)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps PyTorch's exporters from printing: which packages they do without, what they deprecate, the
    traceback of a damaged file, and the whole graph of a model that cannot be exported."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _of_pt2(content: bytes) -> tuple[Card, Forward]:
    extra = {CARD: ""}
    try:
        with quiet():
            program = torch.export.load(io.BytesIO(content), extra_files=extra)
    except Exception as error:  # whatever a damaged archive makes torch stumble over
        raise UserError(f"cannot be read as a .pt2 file ({first_line(error)})") from None
    return Card.of_json(extra[CARD]), program.module()


def _of_onnx(content: bytes) -> tuple[Card, Forward]:
    session = _onnx_session(content)
    card = Card.of_json(session.get_modelmeta().custom_metadata_map.get(CARD, ""))

    def forward(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])

    return card, forward


def _onnx_session(content: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError("is run with onnxruntime, which is missing: pip install 'fedgela[export]'") from None
    try:
        return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # of its own kinds, by where the damage lies
        raise UserError(f"cannot be read as an .onnx file ({first_line(error)})") from None
