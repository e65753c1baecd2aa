"""Commands that measure the software itself: bench, and reproduce, against the paper."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedgela.cli.options import DataDir, Device, Epochs, Seeds, Set, names_of, seeds_of
from fedgela.errors import UserError


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
    from fedgela.data.sources import place_of
    from fedgela.files import check_file, write_json

    if out is not None:
        data = place_of("cifar10", data_dir, None)
        check_file(out, "a JSON", *([data] if data is not None else []))
    options = benchmark.Options(
        workloads=names_of(workload),
        engines=names_of(engines),
        samples=samples,
        epochs=epochs,
        rounds=rounds,
        repetitions=repetitions,
        data_dir=data_dir,
        device=device,
    )

    def keep(rows: list[benchmark.Row]) -> None:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, benchmark.to_json(rows))

    rows = benchmark.run(options, lambda line: print(line, file=sys.stderr, flush=True), keep)
    print(benchmark.to_text(rows), end="")
    if out is not None:
        print(f"written to {out}")
    if any(row.error and not benchmark.ENGINES[row.engine].is_peer for row in rows):
        raise typer.Exit(1)


def reproduce(
    context: typer.Context,
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
    from fedgela.paper import cells
    from fedgela.reproduce import command, listing, planning
    from fedgela.reproduce.ledger import read_ledger
    from fedgela.reproduce.tasks import tasks_of

    asked = {"--list": list_, "--table": table, "--add": add, "--plan": plan, "--smoke": smoke}
    modes = [name for name, on in asked.items() if on]
    if len(modes) > 1:
        raise UserError(f"{' and '.join(modes)}: one at a time")
    _check_options(context, modes[0] if modes else "a run")
    if (list_ or table or plan) and _is_given(context, "ledger") and not ledger.exists():
        raise UserError(f"--ledger: there is no file {ledger}")
    named = names or []
    if add:
        lines, refused = command.add([Path(name) for name in named], ledger, cell, data_note)
        print("\n".join(lines))
        raise typer.Exit(1 if refused else 0)
    if table:
        if named:
            raise UserError(f"--table writes all tables on one page: leave out {' '.join(named)}")
        for note in command.write_page(ledger, page, html):
            print(note, file=sys.stderr)
        print(f"written to {page}" + (f" and {html}" if html is not None else ""))
        return
    chosen = cells(named, dataset or "", names_of(setting), names_of(methods))
    if list_:
        print("\n".join(listing.listed(named, chosen, ledger)))
        return
    if smoke:
        outcome = command.smoke(chosen)
        print(f"of {len(outcome.added) + len(outcome.failed)} runs {len(outcome.failed)} failed")
        raise typer.Exit(1 if outcome.failed else 0)
    if not (named or plan):
        raise UserError("name a table, such as main; 'fedgela reproduce --list' shows all")
    changes = [f"rounds={rounds}"] if rounds is not None else []
    for key, value in (("data_dir", data_dir), ("device", device)):
        changes += [f"{key}={json.dumps(value)}"] if value is not None else []
    tasks = tasks_of(chosen, seeds_of(seeds) or [0], [*changes, *(set_ or [])])
    if plan:
        rates = planning.parse_rates(images_per_second or [])
        print("\n".join(planning.plan(tasks, read_ledger(ledger), rates)))
        return
    outcome, lines = command.run(tasks, out, ledger, budget, data_note)
    print("\n".join(lines))
    if outcome.failed:
        raise typer.Exit(1)
    if outcome.left:
        raise typer.Exit(STOPPED)


STOPPED = 3  # the exit code of a command that its budget has stopped: a shell can repeat it until it is 0

# Which modes of `reproduce` each option is for; with another mode it would do nothing, and is a mistake.
# --plan goes with all options of a run, so that it can be added to a run's own command.
_RUNS = ("a run", "--plan")
_GOES_WITH = {
    "dataset": (*_RUNS, "--list", "--smoke"),
    "setting": (*_RUNS, "--list", "--smoke"),
    "methods": (*_RUNS, "--list", "--smoke"),
    "seeds": _RUNS,
    "ledger": (*_RUNS, "--list", "--table", "--add"),
    "rounds": _RUNS,
    "set_": _RUNS,
    "device": _RUNS,
    "data_dir": _RUNS,
    "out": _RUNS,
    "budget": _RUNS,
    "data_note": (*_RUNS, "--add"),
    "cell": ("--add",),
    "images_per_second": ("--plan",),
    "page": ("--table",),
    "html": ("--table",),
}


def _check_options(context: typer.Context, mode: str) -> None:
    for name, modes in _GOES_WITH.items():
        if mode not in modes and _is_given(context, name):
            option = "--" + name.strip("_").replace("_", "-")
            raise UserError(f"{option} goes with {' or '.join(modes)}, not with {mode}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
