"""The commands, thin."""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console

import fedgela
from fedgela.errors import UserError
from fedgela.flower.cli import app as federation_commands

if TYPE_CHECKING:
    from fedgela.config import Experiment

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning when clients hold only some of the classes.",
)
app.add_typer(federation_commands, name="federation")

Config = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="an experiment in TOML")]
Out = Annotated[Path, typer.Option("--out", help="the folder to write into")]
Algorithm = Annotated[str | None, typer.Option(help="a method's name")]
Algorithms = Annotated[
    str | None, typer.Option(help="methods, by comma; by default those of the config, or 'all'")
]
DatasetName = Annotated[str | None, typer.Option(help="a name, a folder, an .npz or a .parquet file")]
DataDir = Annotated[str | None, typer.Option(help="where NAME.npz files lie")]
Model = Annotated[
    str | None, typer.Option(help="a name, hf:ID of the hub, or your own as package.module:Net")
]
Pretrained = Annotated[
    bool | None,
    typer.Option("--pretrained/--no-pretrained", help="weights of a hub's model"),
]
Partition = Annotated[str | None, typer.Option(help="dirichlet:BETA, classes:C, iid or natural")]
Clients = Annotated[int | None, typer.Option(help="number of clients, N")]
Sample = Annotated[int | None, typer.Option(help="clients that train in a round, K")]
Rounds = Annotated[int | None, typer.Option()]
Epochs = Annotated[int | None, typer.Option(help="local epochs, E")]
BatchSize = Annotated[int | None, typer.Option()]
LearningRate = Annotated[float | None, typer.Option("--lr")]
Seeds = Annotated[str | None, typer.Option(help="one seed or several, by comma: 0,1,2")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
EngineName = Annotated[str | None, typer.Option(help="auto, lanes, eager or flower-simulation")]
Track = Annotated[
    str | None, typer.Option(help="measured every evaluated round, by comma: angles, collapse, gradients")
]
TensorBoard = Annotated[
    bool | None,
    typer.Option("--tensorboard/--no-tensorboard", help="events in the run's folder, for TensorBoard"),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any other key of the config")
]


def _table(context: typer.Context) -> dict[str, Any]:
    """A config's table with the changes that the command line asks for."""
    from fedgela.config import Experiment, read_toml, set_key

    given = {key: value for key, value in context.params.items() if value is not None}
    table = read_toml(Path(given["config"])) if "config" in given else {}  # older typer keeps it a string
    if "algorithm" in given:
        held = table.get("algorithm")
        # the config's own settings of a method hold only for that method
        same = isinstance(held, dict) and held.get("name", "fedgela") == given["algorithm"]
        table["algorithm"] = held if same else {"name": given["algorithm"]}
    flags = Experiment.model_fields.keys() - {"algorithm"}
    table.update({key: value for key, value in given.items() if key in flags})
    for setting in given.get("set_", []):
        set_key(table, setting)
    return table


def _methods(context: typer.Context) -> tuple[dict[str, "Experiment"], list[int]]:
    """The experiments that a command on several methods asks for, and its seeds."""
    from fedgela.compare import experiments_of

    listed = context.params["algorithms"]
    names = [name.strip() for name in listed.split(",")] if listed else []
    where = str(context.params["config"] or "config")
    experiments = experiments_of(_table(context), names, where)
    seeds = _seeds(context.params.get("seeds"))
    return experiments, seeds or [next(iter(experiments.values())).seed]


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: {text!r} is no list of numbers such as 0,1,2") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds: {text!r} must be different numbers from 0 on")
    return seeds


@app.command()
def run(
    context: typer.Context,
    out: Out,
    config: Config = None,
    algorithm: Algorithm = None,
    dataset: DatasetName = None,
    data_dir: DataDir = None,
    model: Model = None,
    pretrained: Pretrained = None,
    partition: Partition = None,
    clients: Clients = None,
    sample: Sample = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    seeds: Seeds = None,
    device: Device = None,
    engine: EngineName = None,
    track: Track = None,
    tensorboard: TensorBoard = None,
    set_: Set = None,
) -> None:
    """Train one method, on one seed or several, into a folder."""
    from fedgela import runs
    from fedgela.config import parse_experiment
    from fedgela.progress import make_view
    from fedgela.seeds import run_seeds

    wanted = _seeds(seeds)
    experiment = parse_experiment(_table(context), str(config or "config"))
    console = Console()
    if wanted is None or len(wanted) == 1:
        if wanted:
            experiment = experiment.with_(seed=wanted[0])
        with make_view(console) as view:
            result = runs.run(experiment, out, view)
    else:
        with make_view(console, len(wanted)) as view:
            result = run_seeds(experiment, wanted, out, view)
    _print_result(result, out)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(metavar="DIR")], tensorboard: TensorBoard = None) -> None:
    """Continue a run after any interruption; it ends as if it had never been interrupted."""
    from fedgela.progress import make_view
    from fedgela.runs import resume as resume_run
    from fedgela.seeds import holds_seeds, resume_seeds

    console = Console()
    with make_view(console) as view:
        several = holds_seeds(folder)
        go_on = resume_seeds if several else resume_run
        result = go_on(folder, view, tensorboard)
    _print_result(result, folder)


@app.command()
def compare(
    context: typer.Context,
    out: Out,
    config: Config = None,
    algorithms: Algorithms = None,
    dataset: DatasetName = None,
    data_dir: DataDir = None,
    model: Model = None,
    pretrained: Pretrained = None,
    partition: Partition = None,
    clients: Clients = None,
    sample: Sample = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    seeds: Seeds = None,
    device: Device = None,
    track: Track = None,
    tensorboard: TensorBoard = None,
    set_: Set = None,
) -> None:
    """Train several methods on the same federation, and print one table."""
    from fedgela import compare as comparing
    from fedgela.progress import SAME_COMMAND, make_view

    experiments, wanted = _methods(context)
    console = Console()
    with make_view(console, len(experiments) * len(wanted)) as view:
        view.goes_on = SAME_COMMAND
        comparison = comparing.compare(experiments, wanted, out, view)
    if console.is_terminal:
        console.print(comparison.to_rich())
    else:
        print(comparison.to_text(), end="")
    print(f"written to {out}")
    if any(row.errors for row in comparison.rows):
        raise typer.Exit(1)


@app.command()
def tune(
    context: typer.Context,
    out: Out,
    config: Config = None,
    algorithms: Algorithms = None,
    trials: Annotated[int, typer.Option(min=1, help="settings tried, the same for every method")] = 6,
    validation: Annotated[
        float, typer.Option(help="share of each client's training samples to choose by")
    ] = 0.2,
    by: Annotated[str, typer.Option(help="what is chosen by: GA, PA or both")] = "both",
    dataset: DatasetName = None,
    data_dir: DataDir = None,
    model: Model = None,
    pretrained: Pretrained = None,
    partition: Partition = None,
    clients: Clients = None,
    sample: Sample = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    seeds: Seeds = None,
    device: Device = None,
    set_: Set = None,
) -> None:
    """Search each method's own grid on validation data, and write the chosen values as a config."""
    from fedgela import tune as tuning
    from fedgela.progress import SAME_COMMAND, make_view

    if by not in ("GA", "PA", "both"):
        raise UserError(f"--by: GA, PA or both, not {by!r}")
    if not 0 < validation < 1:
        raise UserError(f"--validation: a share above 0 and below 1, not {validation:g}")
    if trials > len(tuning.LR_FACTORS):
        raise UserError(f"--trials: at most {len(tuning.LR_FACTORS)}, the learning rates FedAvg can try")
    experiments, wanted = _methods(context)
    total = len(experiments) * len(wanted) * trials
    with make_view(Console(), total) as view:
        view.goes_on = SAME_COMMAND
        best = tuning.tune(experiments, wanted, trials, validation, cast(tuning.Metric, by), out, view)
    for name, trial in best.items():
        settings = "  ".join(f"{k}={v}" for k, v in trial.settings.items() if v is not None)
        score = trial.error or f"GA {trial.GA:.2f}  PA {trial.PA:.2f}"
        print(f"{name:12s} {score}  {settings}")
    print(f"written to {out / 'tuned.toml'}: run it with 'fedgela compare {out / 'tuned.toml'} --out DIR'")
    if any(trial.error for trial in best.values()):
        raise typer.Exit(1)


@app.command()
def burden(
    context: typer.Context,
    config: Config = None,
    algorithms: Algorithms = "all",
    repetitions: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path | None, typer.Option("--out", help="a JSON file to write")] = None,
    dataset: DatasetName = None,
    data_dir: DataDir = None,
    model: Model = None,
    pretrained: Pretrained = None,
    partition: Partition = None,
    clients: Clients = None,
    sample: Sample = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    device: Device = None,
    set_: Set = None,
) -> None:
    """Measure what each method costs a client: time, and parameters held, kept and sent."""
    from fedgela import burden as measuring
    from fedgela.files import write_json

    burdens = measuring.measure(_methods(context)[0], repetitions)
    print("\n".join(measuring.lines(burdens)))
    if out is not None:
        write_json(out, [vars(b) for b in burdens])


@app.command()
def inspect(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(metavar="[DATASET|CONFIG.toml]", help="a data set, or an experiment")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="a folder for text, JSON, PNG and HTML")] = None,
    algorithm: Algorithm = None,
    dataset: DatasetName = None,
    data_dir: DataDir = None,
    model: Model = None,
    pretrained: Pretrained = None,
    partition: Partition = None,
    clients: Clients = None,
    sample: Sample = None,
    batch_size: BatchSize = None,
    seed: Annotated[int | None, typer.Option(help="of the split among clients")] = None,
    set_: Set = None,
) -> None:
    """Tell before training who holds what, and whether FedGELA is likely to help."""
    from fedgela import inspection, inspection_report
    from fedgela.config import parse_experiment

    config = Path(source) if source and source.endswith(".toml") else None
    if config is not None:
        context.params["config"] = config
    elif source is not None:
        if dataset is not None:
            raise UserError(f"--dataset {dataset}: the data set is already given, {source}")
        context.params["dataset"] = source
    if out is not None:
        inspection_report.check_folder(out)
    found = inspection.inspect(parse_experiment(_table(context), str(config or "config")))
    console = Console()
    if console.is_terminal:
        for block in inspection_report.blocks(found):
            console.print(block if isinstance(block, str) else block.to_rich(), markup=False, highlight=False)
            console.print()
    else:
        print(inspection_report.to_text(found), end="")
    if out is not None:
        written = inspection_report.save(found, out)
        print(f"written to {out}: {', '.join(written)}")
        if "heatmap.png" not in written:
            print(inspection_report.NO_PICTURES)


@app.command()
def theory(
    out: Annotated[Path | None, typer.Option("--out", help="a folder for text, JSON and figures")] = None,
    only: Annotated[str | None, typer.Option(help="lemmas, structure or convergence")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the ETF, the split among clients and the batches")] = 0,
) -> None:
    """Check the paper's lemmas and theorems: what is measured beside what they predict."""
    from fedgela import inspection_report, theory
    from fedgela.theory import figures, report

    if only is not None and only not in theory.PARTS:
        raise UserError(f"--only: lemmas, structure or convergence, not {only!r}")
    if out is not None:
        inspection_report.check_folder(out)
        figures.require_matplotlib()
    found = theory.run((only,) if only else theory.PARTS, seed)
    print(report.to_text(found), end="")
    if out is not None:
        print(f"written to {out}: {', '.join(report.save(found, out))}")


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_FOLDER...", help="runs, seeds of one, comparisons, or folders of them"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="the HTML file to write")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="a folder for every picture as PNG and SVG, in papers' sizes"),
    ] = None,
    features: Annotated[str, typer.Option(help="how features are drawn: pca, or tsne (slower)")] = "pca",
) -> None:
    """Write one HTML file that shows runs and compares them; it needs no network and no server."""
    from fedgela import report as reporting

    if features not in ("pca", "tsne"):
        raise UserError(f"--features: pca or tsne, not {features!r}")
    reporting.check_places(out, figures)
    made = reporting.make_report(folders, cast(Literal["pca", "tsne"], features))
    made.save(out, figures)
    for line in made.notes:
        _complain(f"note: {line}")
    drawn = f", {len(made.pictures)} figures to {figures}" if figures is not None else ""
    open_ = sum(run.result is None for run in made.runs)
    told = f" ({open_} not finished)" if open_ else ""
    print(f"{len(made.runs)} run{'s' if len(made.runs) > 1 else ''}{told}: written to {out}{drawn}")


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a run, seeds of one, or a comparison")],
    once: Annotated[bool, typer.Option("--once", help="say how it stands, and end")] = False,
    every: Annotated[float, typer.Option(min=0.05, max=3600.0, help="seconds between looks")] = 1.0,
) -> None:
    """Show how running or finished runs get on, from their files; ends when they end."""
    from fedgela.watch import Watcher
    from fedgela.watch_view import watch as show

    show(Watcher(folder), Console(), once, every)


@app.command()
def bench(
    workload: Annotated[
        str | None, typer.Option(help="digits, simple-cnn or resnet18, by comma; by default by the device")
    ] = None,
    engines: Annotated[
        str, typer.Option(help="by comma, of those installed; the plain loop is always measured")
    ] = "plain,fedgela,flower,pfl,fluke",
    samples: Annotated[int | None, typer.Option(min=1, help="training samples at most")] = None,
    epochs: Epochs = None,
    rounds: Annotated[int, typer.Option(min=1, help="rounds timed together")] = 1,
    repetitions: Annotated[int | None, typer.Option(min=1, help="how often engines take turns")] = None,
    data_dir: Annotated[str | None, typer.Option(help="where cifar10.npz lies, if anywhere")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="a JSON file to write")] = None,
) -> None:
    """Measure samples a second: this engine beside the plain loop and other frameworks."""
    from fedgela import bench as benchmark
    from fedgela.files import write_json

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out: {out} is to be a file in a folder that exists")
    options = benchmark.Options(
        workloads=_names(workload),
        engines=_names(engines),
        samples=samples,
        epochs=epochs,
        rounds=rounds,
        repetitions=repetitions,
        data_dir=data_dir,
        device=device,
    )

    def keep(rows: list[benchmark.Row]) -> None:
        if out is not None:
            write_json(out, benchmark.to_json(rows))

    rows = benchmark.run(options, lambda line: print(line, file=sys.stderr, flush=True), keep)
    print(benchmark.to_text(rows), end="")
    if out is not None:
        print(f"written to {out}")
    if any(row.error and not benchmark.ENGINES[row.engine].is_peer for row in rows):
        raise typer.Exit(1)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="tables and figures by name; with --add, folders of runs"),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="what there is, and what the ledger has")] = False,
    table: Annotated[bool, typer.Option("--table", help="write the paper's tables with ours beside")] = False,
    add: Annotated[bool, typer.Option("--add", help="take finished runs, or a ledger's lines, over")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="tell the seconds that it takes; run nothing")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="every cell at tiny size on made-up data")] = False,
    dataset: Annotated[str | None, typer.Option(help="of the tables' data sets, this one")] = None,
    setting: Annotated[str | None, typer.Option(help="of the tables' settings these, by comma")] = None,
    methods: Annotated[str | None, typer.Option(help="of the tables' methods these, by comma")] = None,
    seeds: Seeds = None,
    ledger: Annotated[Path, typer.Option(help="the ledger, JSON lines")] = Path("results/ledger.jsonl"),
    out: Annotated[Path, typer.Option("--out", help="the folder of the runs")] = Path("runs/reproduce"),
    rounds: Annotated[
        int | None, typer.Option(min=1, help="fewer than the paper's; the table says so")
    ] = None,
    set_: Set = None,
    data_dir: DataDir = None,
    data_note: Annotated[
        str | None, typer.Option(help="what differs in the data from what the paper names, for the table")
    ] = None,
    device: Device = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="seconds; stops between rounds, the same command goes on")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="with --add: the cell that the runs count for")] = None,
    images_per_second: Annotated[
        list[str] | None, typer.Option(metavar="MODEL=VALUE", help="for --plan; by default the ledger's")
    ] = None,
    page: Annotated[Path, typer.Option(help="where --table writes")] = Path("docs/reproduction.md"),
    html: Annotated[Path | None, typer.Option(help="with --table: the same in colours")] = None,
) -> None:
    """Run cells of the paper's tables, keep them in a ledger, and show them beside the paper's numbers."""
    from fedgela.reproduce import command, listing, planning
    from fedgela.reproduce.ledger import read_ledger
    from fedgela.reproduce.tasks import tasks_of

    asked = {"--list": list_, "--table": table, "--add": add, "--plan": plan, "--smoke": smoke}
    if sum(asked.values()) > 1:
        raise UserError(f"{' and '.join(name for name, on in asked.items() if on)}: one at a time")
    named = names or []
    if add:
        lines, refused = command.add([Path(name) for name in named], ledger, cell, data_note)
        print("\n".join(lines))
        raise typer.Exit(1 if refused else 0)
    if cell is not None:
        raise UserError("--cell goes with --add")
    if table:
        command.write_page(ledger, page, html)
        print(f"written to {page}" + (f" and {html}" if html is not None else ""))
        return
    chosen = command.chosen_cells(named, dataset, setting, _names(methods))
    if list_:
        entries = read_ledger(ledger)
        for name in named:
            print("\n".join(listing.list_table(name, entries)))
        if not named:
            print("\n".join(listing.list_tables(entries)))
        return
    if smoke:
        outcome = command.smoke(chosen)[0]
        print(f"{len(outcome.added)} runs work, {len(outcome.failed)} do not")
        raise typer.Exit(1 if outcome.failed else 0)
    if not (named or plan):
        raise UserError("name a table, such as main; 'fedgela reproduce --list' shows all")
    if not chosen:
        raise UserError("no cell of the paper fits; 'fedgela reproduce --list TABLE' shows a table's")
    changes = [f"rounds={rounds}"] if rounds is not None else []
    for key, value in (("data_dir", data_dir), ("device", device)):
        changes += [f"{key}={json.dumps(value)}"] if value is not None else []
    tasks = tasks_of(chosen, _seeds(seeds) or [0], [*changes, *(set_ or [])])
    if plan:
        rates = planning.parse_rates(images_per_second or [])
        print("\n".join(planning.plan(tasks, read_ledger(ledger), rates)))
        return
    outcome, lines = command.run(tasks, out, ledger, budget, data_note)
    print("\n".join(lines))
    if outcome.failed:
        raise typer.Exit(1)


def _names(listed: str | None) -> list[str]:
    return [name.strip() for name in listed.split(",")] if listed else []


def _print_result(result: dict[str, Any], out: Path) -> None:
    several = "seeds" in result
    for name in ("GA", "PA", "PA_finetuned", "GA_locals"):
        if name not in result:
            continue
        r = result[name]
        if several:
            parts = [f"{w} {r[w]['mean']:.2f} ± {r[w]['std']:.2f}" for w in ("best", "last")]
            parts.append(f"over {len(result['seeds'])} seeds")
        else:
            parts = [f"{w} {r[w]:.2f} (round {r[w + '_round']})" for w in ("best", "last")]
        print("  ".join([name, *parts]))
    print(f"written to {out}")


def _version(show: bool) -> None:
    if show:
        print(f"fedgela {fedgela.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None: ...


def main() -> None:
    """A user's mistake ends in a line or two and exit code 2; a bug shows its traceback."""
    warnings.showwarning = _show_warning
    try:
        app()
    except UserError as error:
        sys.exit(_complain(str(error)))
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        sys.exit(_complain(str(error)))
    except KeyboardInterrupt:  # the view has said how to go on
        sys.exit(130)


_show_foreign_warning = warnings.showwarning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are for the user, and need no line of code with them."""
    if Path(filename).is_relative_to(Path(__file__).parent):
        _complain(f"note: {message}")
    else:
        _show_foreign_warning(message, category, filename, lineno, file, line)


def _complain(text: str) -> int:
    for line in text.splitlines():
        print(f"fedgela: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
