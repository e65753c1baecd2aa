"""Experiment: one validated description of a run. TOML in, TOML out."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from fedgela.aggregation import parse_aggregation
from fedgela.algorithms import ALGORITHMS, FedAvg, find_algorithm, name_of
from fedgela.data.partition import Scheme
from fedgela.errors import UserError, did_you_mean, first_line
from fedgela.models import Policy, check_model
from fedgela.schedule import parse_schedule


def _checked_by(parse: Any) -> AfterValidator:
    """A validator for strings that `parse` must accept; they are kept as strings."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def make_algorithm(value: object) -> FedAvg:
    """An algorithm from its name, or from a table with its name and hyper-parameters."""
    if isinstance(value, FedAvg):
        value = _algorithm_table(value)  # as a config would have it
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise ValueError(f"give a method's name or a table with its name, not {value!r}")
    name = table.get("name", "fedgela")
    if not isinstance(name, str):
        raise ValueError(f"a method's name is a string, not {name!r}")
    method = _method(name)
    own = {key: value for key, value in table.items() if key != "name"}
    # as JSON, since pydantic's strict mode makes a dataclass of JSON but not of a Python dict
    text = json.dumps(own, default=str)
    try:
        made = _reader(method).validate_json(text)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        why = first_line(error).split(". ")[0]
        raise ValueError(f"{name}: a hyper-parameter must be {PLAIN} ({why})") from None
    _check_plain(name, made)
    return made


_READERS: dict[type[FedAvg], TypeAdapter[FedAvg]] = {}


def _reader(method: type[FedAvg]) -> TypeAdapter[FedAvg]:
    """Cached, since making one takes longer than reading with it."""
    if method not in _READERS:
        _READERS[method] = TypeAdapter(method)
    return _READERS[method]


PLAIN = "a number, a string, true or false, or a tuple of these"


def _check_plain(name: str, made: FedAvg) -> None:
    """A ValueError where a hyper-parameter cannot be written as TOML and JSON, as configs and results need
    it, or not be hashed, by which engines tell methods apart."""
    for field in dataclasses.fields(made):
        if getattr(made, field.name) is None and field.default is not None:
            raise ValueError(f"{name}: {field.name} cannot be None: in a config that means its default")
    for key, value in _without_none(dataclasses.asdict(made)).items():
        try:
            tomli_w.dumps(json.loads(json.dumps({key: value})))
        except TypeError:
            raise ValueError(f"{name}: {key} must be {PLAIN}, not a {type(value).__name__}") from None
    try:
        hash(made)
    except TypeError as error:
        raise ValueError(f"{name}: a hyper-parameter must be a fixed value ({error})") from None


def _method(name: str) -> type[FedAvg]:
    try:
        method = find_algorithm(name)
    except UserError as error:
        raise ValueError(str(error)) from None
    for field in dataclasses.fields(method):
        if field.name in Experiment.model_fields:  # ambiguous in [methods.NAME], which may set both
            raise ValueError(f"{name}: {field.name} is a key of every experiment; call it otherwise")
    return method


def _algorithm_table(algorithm: FedAvg) -> dict[str, Any]:
    return {"name": name_of(algorithm), **dataclasses.asdict(algorithm)}


TRACKED = ("angles", "collapse", "gradients")


def tracked_names(value: object) -> tuple[str, ...]:
    """The names of what to track, from a list or from a string with commas: each once, in TRACKED's order."""
    listed = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        raise ValueError(f"give a list of {', '.join(TRACKED)}, not {_shown(value)}")
    for name in listed:
        if name not in TRACKED:
            hint = did_you_mean(name, TRACKED) if isinstance(name, str) else ""
            raise ValueError(f"{_shown(name)} cannot be tracked{hint}; there are {', '.join(TRACKED)}")
    return tuple(name for name in TRACKED if name in listed)


Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=10**9)]


# the keys that decide how a data set is read, and those that decide how it is split among clients
READING = ("dataset", "data_dir", "image_size", "unreadable", "augment")
SPLITTING = ("partition", "clients", "min_samples", "validation", "partition_seed")


class Experiment(BaseModel):
    """Everything that decides a run's result, and where it is computed. The defaults are the paper's values.
    What is None is chosen before a run begins, by `resolve` or for its engine by `choose`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        validate_default=True,
    )

    # the data, and who holds it
    dataset: Annotated[str, Field(min_length=1)] = (
        "digits"  # a name, a folder, an .npz, .parquet or .csv file
    )
    data_dir: str | None = None  # where NAME.npz files lie; None: FEDGELA_DATA, or the cache
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None  # side of decoded images, pixels; None: 32
    unreadable: Literal["error", "skip"] = "error"  # images that cannot be read: error, or skip
    augment: bool | None = None  # whether training images are augmented; None: cifar100's only
    partition: Annotated[str, _checked_by(Scheme.parse)] | None = (
        None  # who holds what (below); None: natural where the data has clients, else dirichlet:0.1
    )
    clients: Count | None = None  # number of clients, N; None: 10, or all natural ones
    min_samples: Annotated[int, Field(ge=0)] | None = None  # of a client (dirichlet); None: one batch
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share held out to stand in for the test sets

    # the model
    model: str | None = None  # a name, hf:ID, or your own as package.module:Net; None: by the data
    pretrained: bool = True  # models of the hub only: start from its weights
    weights: Annotated[str, Field(min_length=1)] | None = None  # .safetensors of a backbone, or a hub folder
    batchnorm: Policy = "averaged"  # averaged, local (FedBN), or group: GroupNorm in its place
    projection: Annotated[int, Field(ge=1, le=65536)] | None = None  # d, of features; None: 84 up to C = 84

    # the round
    sample: Count | None = None  # clients that train in a round, K; None: all
    rounds: Count = 50  # rounds, T
    epochs: Count = 10  # local epochs a round, E
    batch_size: Count = 100  # samples of a batch, B
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"  # of local training: sgd, adam or adamw
    lr: Annotated[float, Field(gt=0)] = 0.01  # learning rate of local training
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of SGD; zero at the start of every local round
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4  # of all trained parameters
    clip_norm: Annotated[float, Field(ge=0)] = 0.0  # gradients are clipped to this norm; 0 is off
    schedule: Annotated[str, _checked_by(parse_schedule)] = (
        "constant"  # of lr over rounds: cosine, exponential:GAMMA, step:EVERY:GAMMA
    )
    aggregation: Annotated[str, _checked_by(parse_aggregation)] = (
        "mean"  # of a round's updates; against broken clients: median, trimmed:F, krum:M, clipped
    )
    server_lr: Annotated[float, Field(gt=0)] = 1.0  # factor of the averaged change
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # momentum of the averaged change (FedAvgM)
    server_average: Annotated[float, Field(ge=0, lt=1)] = (
        0.0  # weight of the rounds before in the averaged global model, which GA is of; 0 is off
    )

    # what is measured and kept
    eval_every: Count = 1  # rounds from one evaluation to the next; the last is always evaluated
    finetune_epochs: Annotated[int, Field(ge=0, le=10**6)] = 10  # fine-tuning of the global model, for PA
    checkpoint_every: Count | None = None  # rounds between two; None: so that a tenth of the time is enough
    track: tuple[str, ...] = ()  # measured beside, at evaluated rounds: angles, collapse, gradients
    tensorboard: bool = False  # events of every round in the run's folder

    # chance and hardware
    seed: Seed = 0  # seed of everything that is drawn
    partition_seed: Seed | None = None  # seed of the split among clients; None: the seed
    device: Annotated[str, Field(min_length=1)] = "auto"  # cpu, cuda, cuda:1; auto: a GPU where there is one
    engine: Literal["auto", "lanes", "eager", "flower-simulation"] = (
        "auto"  # lanes; eager: one client after another, plain PyTorch; flower-simulation: Flower on Ray
    )
    lanes: Annotated[int, Field(ge=1, le=1024)] | None = None  # groups side by side; None: by model, machine
    width: Annotated[int, Field(ge=1, le=64)] | None = None  # clients in lockstep in one; None: by model
    compile: bool | None = None  # torch.compile; None: on a GPU, where it pays
    precision: Literal["bf16", "fp32"] | None = None  # of the backbone; None: bf16 on a GPU (recurrent: fp32)
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None  # threads of the CPU; None: by the model

    algorithm: Annotated[
        SkipValidation[FedAvg], PlainSerializer(_algorithm_table, return_type=dict[str, Any])
    ] = ALGORITHMS["fedgela"]()  # a method's name, or a table with its name and hyper-parameters

    @field_validator("algorithm", mode="before")
    @classmethod
    def _make_algorithm(cls, value: object) -> FedAvg:
        return make_algorithm(value)

    @field_validator("track", mode="before")
    @classmethod
    def _known_measures(cls, value: object) -> tuple[str, ...]:
        return tracked_names(value)

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str | None) -> str | None:
        try:
            if name is not None:
                check_model(name)
        except UserError as error:
            raise ValueError(str(error)) from None
        return name

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str) -> str:
        try:
            known = name == "auto" or torch.device(name).type in ("cpu", "cuda")
        except RuntimeError:
            known = False
        if not known:
            raise ValueError(f"{name!r} is no device to train on; try auto, cpu, cuda or cuda:1")
        return name

    @model_validator(mode="after")
    def _sample_of_clients(self) -> "Experiment":
        if self.sample is not None and self.clients is not None and self.sample > self.clients:
            raise ValueError(f"sample: {self.sample} clients a round are more than all {self.clients}")
        return self

    @model_validator(mode="wrap")  # the last of all, so that it hears of every mistake
    @classmethod
    def _told_plainly(cls, table: object, validate: ModelWrapValidatorHandler["Experiment"]) -> "Experiment":
        """A mistake is a UserError of one or two lines, in Python as in a config."""
        try:
            return validate(table)
        except ValidationError as error:
            lines = _explain(error, _method_named(table))
        more = f" (and {len(lines) - 2} more)" if len(lines) > 2 else ""
        raise UserError("\n".join(lines[:2]) + more)

    def with_(self, **changes: Any) -> "Experiment":
        """The experiment with some values changed, validated again."""
        return Experiment.model_validate(_without_none({**self.model_dump(), **changes}))

    def to_toml(self) -> str:
        return tomli_w.dumps(plain_table(self))


def comparable(experiment: Experiment) -> dict[str, Any]:
    """The keys that runs must have in common to be compared, with their values. Seeds and the content of the
    data must agree, too; augmentation may be a method's own."""
    keys = ["dataset", "image_size", "unreadable", "partition", "clients", "validation"]
    if (experiment.partition or "").startswith("dirichlet"):
        keys.append("min_samples")  # splits are redrawn until all clients have so many
    keys += ["model", "sample", "rounds", "eval_every"]
    return {key: getattr(experiment, key) for key in keys}


def plain_table(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a table of plain values, as TOML holds it."""
    return _without_none(experiment.model_dump())


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


# what other software calls some keys
SYNONYMS = {"learning_rate": "lr", "wd": "weight_decay", "num_clients": "clients", "num_rounds": "rounds"}


def known_keys(algorithm: str | None = None) -> list[str]:
    """All keys that a config may have, with the method's own as algorithm.KEY."""
    try:
        method = find_algorithm(algorithm or "fedgela")
    except UserError:
        method = ALGORITHMS["fedgela"]
    own = [f"algorithm.{field.name}" for field in dataclasses.fields(method)]
    return [*Experiment.model_fields, "algorithm.name", *own]


def parse_experiment(table: dict[str, Any], where: str = "config") -> Experiment:
    """A validated experiment from a config's table; the lines of a UserError begin with `where`."""
    try:
        return Experiment.model_validate(_without_none(table))
    except UserError as error:
        raise UserError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None


def _method_named(table: object) -> str:
    """The name of the method that a config's table asks for, as far as it tells."""
    algorithm = table.get("algorithm") if isinstance(table, dict) else None
    if isinstance(algorithm, FedAvg):
        return name_of(algorithm)
    name = algorithm.get("name") if isinstance(algorithm, dict) else algorithm
    return name if isinstance(name, str) else "fedgela"


def _explain(error: ValidationError, method: str, prefix: tuple[str, ...] = ()) -> list[str]:
    lines = []
    for problem in error.errors():
        key = ".".join([*prefix, *(str(part) for part in problem["loc"])])
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"there is no key {key!r}{_hint(key, method)}")
        elif problem["type"] == "value_error":
            cause = problem["ctx"]["error"]
            if isinstance(cause, ValidationError):
                lines += _explain(cause, method, (key,))
            else:
                lines.append(f"{key}: {cause}" if key else str(cause))
        else:
            lines.append(f"{key}: {problem['msg'].removeprefix('Input ')}, not {_shown(problem['input'])}")
    return lines


def _hint(key: str, method: str) -> str:
    """What may have been meant by a key that does not exist."""
    known = known_keys(method)
    if key.split(".")[0] == "methods":
        return "; tables of methods are for compare and tune"
    name = f"algorithm.{key.removeprefix('algorithm.')}"
    others = [other for other in ALGORITHMS if name in known_keys(other)]
    if others and name not in known:
        own = [k.removeprefix("algorithm.") for k in known if k.startswith("algorithm.")]
        own.remove("name")
        return f" of {method}, only of {', '.join(others)}; {method} has {', '.join(own) or 'none'}"
    return did_you_mean(SYNONYMS.get(key.rsplit(".", 1)[-1].lower(), key), known)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "that"
    return text if len(text) <= 60 else text[:57] + "..."


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # with a BOM, or without
    except FileNotFoundError:
        raise UserError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and integers with too many digits
        raise UserError(f"{path}: not valid TOML: {error}") from None


def set_key(table: dict[str, Any], assignment: str) -> None:
    """Apply one `--set key=value` to a config's table. A value that is not TOML is taken as a string."""
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"--set {assignment!r}: write key=value")
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if len(parsed) == 1 else text
    except (ValueError, RecursionError):
        value = text.strip()
    *tables, last = key.split(".")
    for name in tables:
        inner = table.get(name)
        if isinstance(inner, str) and name == "algorithm":
            inner = {"name": inner}  # algorithm = "fedge", then algorithm.E_W
        if inner is not None and not isinstance(inner, dict):
            raise UserError(f"--set {assignment!r}: {name!r} is a value, not a table")
        table[name] = table = dict(inner or {})
    table[last] = value
