"""Commands that look: inspect, theory, report, watch."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgela.cli.complaints import complain
from fedgela.cli.options import data_of, describes_an_experiment, one_of, table_of
from fedgela.errors import UserError


@describes_an_experiment("rounds", "epochs", "lr", "device", "engine", "track", "tensorboard")
def inspect(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(metavar="[DATASET|CONFIG.toml]", help="a data set, or an experiment")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="a folder for text, JSON, PNG and HTML")] = None,
    seed: Annotated[int | None, typer.Option(help="of the split among clients")] = None,
) -> None:
    """Tell who holds what, and whether FedGELA is likely to help."""
    from fedgela import inspection, inspection_report
    from fedgela.config import parse_experiment
    from fedgela.files import check_apart, check_folder

    config = Path(source) if source and source.endswith(".toml") else None
    if config is not None:
        context.params["config"] = config
    elif source is not None:
        if context.params["dataset"] is not None:
            raise UserError(f"--dataset {context.params['dataset']}: the data set is already given, {source}")
        context.params["dataset"] = source
    table = table_of(context)
    table.pop("methods", None)  # who holds what is the same for all methods of a comparison
    experiment = parse_experiment(table, str(config or "config"))
    if out is not None:
        check_folder(out)
        check_apart(out, *data_of(experiment))
    found = inspection.inspect(experiment)
    console = Console()
    if console.is_terminal:
        for block in inspection_report.blocks(found, console.width):
            shown = block if isinstance(block, str) else block.to_rich(console.width)
            console.print(shown, markup=False, highlight=False)
            console.print()
    else:
        print(inspection_report.to_text(found), end="")
    if out is not None:
        written = inspection_report.save(found, out)
        print(f"written to {out}: {', '.join(written)}")
        if "heatmap.png" not in written:
            print(inspection_report.NO_PICTURES)


def theory(
    out: Annotated[Path | None, typer.Option("--out", help="a folder for text, JSON and figures")] = None,
    only: Annotated[str | None, typer.Option(help="lemmas, structure or convergence")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the ETF, the split among clients and the batches")] = 0,
) -> None:
    """Check the paper's lemmas and theorems: what is measured beside what they predict."""
    from fedgela import theory
    from fedgela.files import check_folder
    from fedgela.imports import require_matplotlib
    from fedgela.theory import report

    parts = theory.PARTS if only is None else (one_of("--only", only, *theory.PARTS),)
    if out is not None:
        check_folder(out)
        require_matplotlib("--out draws figures (tables are printed without it)")
    found = theory.run(parts, seed)
    print(report.to_text(found), end="")
    if out is not None:
        print(f"written to {out}: {', '.join(report.save(found, out))}")


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
    from fedgela.files import check_apart, check_file, check_folder

    kind = one_of("--features", features, "pca", "tsne")
    check_file(out, "an HTML")
    if figures is not None:
        check_folder(figures, "--figures")
    made = reporting.make_report(folders, kind)
    read = [file for run in made.runs for file in run.files]
    check_apart(out, *read)
    if figures is not None:
        check_apart(figures, *read, option="--figures")
    made.save(out, figures)
    for line in made.notes:
        complain(f"note: {line}")
    drawn = f", {len(made.pictures)} figures to {figures}" if figures is not None else ""
    open_ = sum(run.result is None for run in made.runs)
    told = f" ({open_} not finished)" if open_ else ""
    print(f"{len(made.runs)} run{'s' if len(made.runs) > 1 else ''}{told}: written to {out}{drawn}")


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a run, seeds of one, or a comparison")],
    once: Annotated[bool, typer.Option("--once", help="say how it stands, and end")] = False,
    every: Annotated[float, typer.Option(min=0.05, max=3600.0, help="seconds between looks")] = 1.0,
) -> None:
    """Show how running or finished runs get on, from their files; ends when they end."""
    from fedgela.watch import Watcher
    from fedgela.watch_view import watch as show

    show(Watcher(folder), Console(), once, every)
