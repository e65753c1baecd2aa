"""Options that several commands share, and the experiment that they describe together."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgela.errors import UserError

if TYPE_CHECKING:
    from fedgela.config import Experiment

Config = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="an experiment in TOML")]


def _folder(text: str) -> Path:
    """A path that is not empty: --out "$OUT" with an unset variable does not mean the current folder."""
    if not text:
        raise UserError("--out: name a folder; this is empty")
    return Path(text)


Out = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", parser=_folder, help="the folder to write into")
]
Algorithms = Annotated[
    str | None, typer.Option(help="methods, by comma; by default those of the config, or 'all'")
]
DataDir = Annotated[str | None, typer.Option(help="where NAME.npz files lie")]
Epochs = Annotated[int | None, typer.Option(help="local epochs, E")]
Seeds = Annotated[str | None, typer.Option(help="one seed or several, by comma: 0,1,2")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
TensorBoard = Annotated[
    bool | None,
    typer.Option("--tensorboard/--no-tensorboard", help="events in the run's folder, for TensorBoard"),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any other key of the config")
]

# keys of an experiment that have options of their own
KEYS: dict[str, Any] = {
    "algorithm": Annotated[str | None, typer.Option(help="a method's name")],
    "dataset": Annotated[
        str | None, typer.Option(help="data: a name, a folder, an .npz, .parquet or .csv file")
    ],
    "data_dir": DataDir,
    "model": Annotated[
        str | None, typer.Option(help="a name, hf:ID of the hub, or your own as package.module:Net")
    ],
    "pretrained": Annotated[
        bool | None,
        typer.Option("--pretrained/--no-pretrained", help="start from the weights of a hub's model, or not"),
    ],
    "partition": Annotated[
        str | None, typer.Option(help="who holds what: dirichlet:BETA, classes:C, iid or natural")
    ],
    "clients": Annotated[int | None, typer.Option(help="number of clients, N")],
    "sample": Annotated[int | None, typer.Option(help="clients that train in a round, K")],
    "rounds": Annotated[int | None, typer.Option(help="rounds, T")],
    "epochs": Epochs,
    "batch_size": Annotated[int | None, typer.Option(help="samples of a batch, B")],
    "lr": Annotated[float | None, typer.Option("--lr", help="learning rate of local training")],
    "device": Device,
    "engine": Annotated[
        str | None, typer.Option(help="what trains: auto, lanes, eager or flower-simulation")
    ],
    "track": Annotated[
        str | None, typer.Option(help="measured every evaluated round, by comma: angles, collapse, gradients")
    ],
    "tensorboard": TensorBoard,
}


def describes_an_experiment(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that adds the options of KEYS, without some, and --set to a command that takes a context.
    The command gets their values by `table_of`, from the context."""
    keys = {key: kind for key, kind in KEYS.items() if key not in without} | {"set_": Set}
    added = [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=v)
        for k, v in keys.items()
    ]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values()

        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(**{parameter.name: given[parameter.name] for parameter in own})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        called.__signature__ = inspect.Signature([*parameters, *added])  # type: ignore[attr-defined]
        return called

    return decorated


def table_of(context: typer.Context) -> dict[str, Any]:
    """The config's table with the changes that the options ask for."""
    from fedgela.config import Experiment, set_key

    given = {key: value for key, value in context.params.items() if value is not None}
    table = _read(Path(given["config"])) if "config" in given else {}  # older typer keeps it a string
    if "algorithm" in given:
        held = table.get("algorithm")
        # settings of a method in the config are only for that method
        same = isinstance(held, dict) and held.get("name", "fedgela") == given["algorithm"]
        table["algorithm"] = held if same else {"name": given["algorithm"]}
    flags = Experiment.model_fields.keys() - {"algorithm"}
    table.update({key: value for key, value in given.items() if key in flags})
    for setting in given.get("set_", []):
        set_key(table, setting)
    return table


def _read(config: Path) -> dict[str, Any]:
    from fedgela.config import read_toml
    from fedgela.data.catalogue import NAMES
    from fedgela.data.sources import FILES

    if config.suffix.lower() in FILES or config.is_dir() or str(config) in NAMES:
        raise UserError(f"{config}: is no config in TOML; data is given by --dataset {config}")
    return read_toml(config)


def data_of(*experiments: "Experiment") -> list[Path]:
    """The files and folders with the experiments' data, which nothing may be written to."""
    from fedgela.data.sources import place_of

    places = [place_of(e.dataset, e.data_dir, e.image_size) for e in experiments]
    return [place for place in dict.fromkeys(places) if place is not None]


def methods_of(context: typer.Context) -> tuple[dict[str, "Experiment"], list[int]]:
    """The experiments that a command on several methods asks for, and its seeds."""
    from fedgela.methods import experiments_of

    listed = context.params["algorithms"]
    if listed is not None and not listed.strip():
        raise UserError("--algorithms: there is no method's name")
    names = names_of(listed)
    if "" in names:
        raise UserError(f"--algorithms: {listed!r} has a comma too many")
    where = str(context.params["config"] or "config")
    experiments = experiments_of(table_of(context), names, where)
    seeds = seeds_of(context.params.get("seeds"))
    return experiments, seeds or [next(iter(experiments.values())).seed]


def seeds_of(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: {text!r} is no list of numbers such as 0,1,2") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds: {text!r} must be different numbers from 0 on")
    return seeds


def one_of(option: str, given: str, *known: str) -> Any:
    """What is given to an option that takes one of these words."""
    if given not in known:
        raise UserError(f"{option}: {', '.join(known[:-1])} or {known[-1]}, not {given!r}")
    return given


def names_of(listed: str | None) -> list[str]:
    return [name.strip() for name in listed.split(",")] if listed else []
