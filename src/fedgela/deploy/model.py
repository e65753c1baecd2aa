"""A model to be asked: of a run's folder, or exported; with what its users must know of it."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedgela
from fedgela.client_names import client_names, find_client
from fedgela.deploy.predictor import Predictor, Which, data_of, predictor_at_a_site, predictor_of
from fedgela.errors import UserError, first_line
from fedgela.flower.personal import personal_folder
from fedgela.inputs import InputSpec
from fedgela.saved.runs import Run, find_runs

CARD = "fedgela.json"  # the card's name in an exported file
EXPORTED = (".onnx", ".pt2")
BATCH = 256


NOT_FINETUNED = "this site, as it last trained: PA counts the global model fine-tuned"


@dataclass(frozen=True)
class Card:
    """What an exported file says of itself."""

    method: str
    client: int | None  # whose personal model it is, by number; None: the global one
    round: int
    input: InputSpec
    classes: tuple[str, ...]
    data: str  # the fingerprint of what it was trained on
    client_name: str = ""  # or id, where the data has one
    features: tuple[str, ...] = ()  # the columns of tables, in the order that it takes them
    version: str = fedgela.__version__

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Card":
        try:
            values = json.loads(text)
            spec = InputSpec.of(values["input"])
            rows = {key: tuple(values.get(key, ())) for key in ("classes", "features")}
            return cls(**{**values, **rows, "input": spec})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"its {CARD} cannot be read ({type(error).__name__}: {error})") from None

    def __str__(self) -> str:
        whose = "the global model" if self.client is None else f"the personal model of client {self.client}"
        whose += f" ({self.client_name})" if self.client_name else ""
        return f"{whose} of {self.method}, round {self.round}: {self.input}, {len(self.classes)} classes"


@dataclass(frozen=True)
class Model:
    card: Card
    forward: Callable[[Tensor], Tensor]
    training_samples: Tensor | None = None  # of all clients, where they are at hand

    def probabilities(self, x: Tensor | np.ndarray) -> Tensor:
        """[n, C], of samples as they lie in the data: uint8 images [n, channels, height, width], float
        features [n, d], tokens [n, length]."""
        samples = self._fitting(torch.as_tensor(x))
        with torch.no_grad():
            parts = [self.forward(part) for part in torch.split(samples, BATCH)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.card.classes))

    def _fitting(self, x: Tensor) -> Tensor:
        """Images of other numbers, from 0 to 1 say, would be answered as nearly black ones."""
        spec = self.card.input
        kinds = {"image": "uint8", "features": "floating-point", "tokens": "integer"}
        fits = {
            "image": x.dtype == torch.uint8,
            "features": x.is_floating_point(),
            "tokens": not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool),
        }[spec.kind]
        if not fits or tuple(x.shape[1:]) != spec.shape:
            wanted = f"{kinds[spec.kind]} [n, {', '.join(map(str, spec.shape))}]"
            raise UserError(f"the model takes {wanted}, not {str(x.dtype)[6:]} {list(x.shape)}")
        if spec.kind == "features":
            x = x.float()
            if not x.isfinite().all():  # a class would be made of NaN all the same
                row, column = (~x.isfinite()).nonzero()[0].tolist()
                raise UserError(f"no finite number in float32: row {row}, column {column}")
        return x.long() if spec.kind == "tokens" else x


def load_model(path: str | Path, client: int | str | None = None, round: Which = "last") -> Model:
    """The model of a run's folder, global or a client's, that of a site's folder, or of a file that `fedgela
    export` wrote. A client is a number from 0, or a string: its name, its id in the data, or its number."""
    path = Path(path)
    if path.suffix not in EXPORTED or path.is_dir():
        return Model(*trained_model(path, client, round))
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if client is not None or round != "last":
        raise UserError(
            f"{path}: an exported file holds one model; --client and --round are for a run's folder"
        )
    try:
        return _of_onnx(path) if path.suffix == ".onnx" else _of_pt2(path)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def only_run(path: Path) -> Run:
    """The run in a folder; a UserError where there are several, as of several seeds or methods."""
    runs = find_runs([path], lambda text: None)
    if len(runs) > 1:
        listed = ", ".join(str(run.path) for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
        raise UserError(f"{path}: holds {len(runs)} runs, give one of them: {listed}")
    return runs[0]


def files_of(path: Path) -> list[Path]:
    """What a model is read from: an exported file, a site's state, or a run's own files and its data."""
    if path.suffix in EXPORTED and not path.is_dir():
        return [path]
    at_a_site = personal_folder(path)
    return [at_a_site] if at_a_site is not None else only_run(path).files


def trained_model(
    path: Path, client: int | str | None, which: Which
) -> tuple[Card, Predictor, Tensor | None]:
    """Of a run's folder, or of a site's; and what it was trained on, which a site keeps to itself."""
    at_a_site = personal_folder(path)
    if at_a_site is not None:
        if client is not None or which != "last":
            raise UserError(f"{path}: a site keeps its own last model only; leave --client and --round out")
        return _at_a_site(at_a_site)
    run = only_run(path)
    if run.sites is not None and client is not None:
        raise UserError(
            f"{run.path}: the personal models of a federation are kept by its sites alone: "
            "there 'fedgela predict SITE_FOLDER' asks them"
        )
    federation = data_of(run)
    number = find_client(client, run.experiment, federation) if isinstance(client, str) else client
    predictor, round = predictor_of(run, federation, number, which)
    data = federation.data
    known = client_names(run.experiment, federation)
    # a federation's server knows of a table's columns only whether others are the same
    at_sites = run.sites.agreed if run.sites is not None else None
    card = Card(
        method=run.experiment.algorithm.title,
        client=number,
        round=round,
        input=data.spec if at_sites is None else at_sites.sample,
        classes=data.class_names or tuple(str(c) for c in range(data.classes)),
        data=data.fingerprint,
        client_name=known[number] if known and number is not None else "",
        features=data.feature_names,
    )
    return card, predictor, data.x_train if run.sites is None else None


def _at_a_site(folder: Path) -> tuple[Card, Predictor, None]:
    predictor, algorithm, held = predictor_at_a_site(folder)
    card = Card(
        method=algorithm.title,
        client=held.site,
        round=held.round,
        input=held.sample,
        classes=held.classes,
        data=held.data,
        client_name="this site" if algorithm.PA_of == "local" else NOT_FINETUNED,
        features=held.features,
    )
    return card, predictor, None


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch's exporters speak of themselves: of packages that they do without, of what they deprecate, of a
    damaged file with a traceback, and of a model that cannot be exported with all of its graph."""
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


def _of_pt2(path: Path) -> Model:
    extra = {CARD: ""}
    try:
        with quiet():
            program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # whatever a damaged archive makes torch stumble over
        raise UserError(f"cannot be read as a .pt2 file ({first_line(error)})") from None
    return Model(_card(extra[CARD]), program.module())


def _of_onnx(path: Path) -> Model:
    session = onnx_session(path)
    card = _card(session.get_modelmeta().custom_metadata_map.get(CARD, ""))

    def forward(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])

    return Model(card, forward)


def onnx_session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError("is run with onnxruntime, which is missing: pip install 'fedgela[export]'") from None
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # of its own kinds, by where the damage lies
        raise UserError(f"cannot be read as an .onnx file ({first_line(error)})") from None


def _card(text: str) -> Card:
    if not text:
        raise UserError(f"has no {CARD}: it is not of `fedgela export`")
    return Card.of_json(text)
