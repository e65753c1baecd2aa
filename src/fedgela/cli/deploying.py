"""Commands that use trained models: export, predict."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedgela.cli.options import one_of

SHOWN = 20  # predictions in the terminal
ROUNDS = ("last", "best")

Client = Annotated[
    str | None,
    typer.Option(help="this client's personal model, by name, id or number; by default the global one"),
]
Round = Annotated[str, typer.Option("--round", help="last, or best: of the best GA on the test data")]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run")],
    out: Annotated[Path, typer.Option("--out", help="the file to write: .onnx, or .pt2 (PyTorch)")],
    client: Client = None,
    round: Round = "last",
) -> None:
    """Write a model as one file that needs nothing of this package: raw samples in, probabilities out."""
    from fedgela.deploy.export import export

    card, apart = export(run, out, client, one_of("--round", round, *ROUNDS))
    print(f"{card}\nwritten to {out}; largest difference to the run's model in a probability: {apart:.1g}")


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="the folder of a run, or an exported file")
    ],
    samples: Annotated[
        Path,
        typer.Argument(
            metavar="SAMPLES", help="an image, a folder of images, an .npz, .parquet or .csv file"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="a CSV file with every class's probability")
    ] = None,
    client: Client = None,
    round: Round = "last",
    skip: Annotated[bool, typer.Option("--skip-unreadable", help="leave out what cannot be read")] = False,
) -> None:
    """Say which classes samples are of; how many answers are right, where their labels are known."""
    from fedgela.deploy.model import files_of, load_model
    from fedgela.deploy.prediction import predict
    from fedgela.deploy.samples import read_samples
    from fedgela.deploy.trained_on import trained_on
    from fedgela.errors import printable
    from fedgela.files import check_file

    if out is not None:
        check_file(out, "a CSV", samples, *files_of(model))
    loaded = load_model(model, client, one_of("--round", round, *ROUNDS))
    card = loaded.card
    read = read_samples(samples, card.input, card.classes, card.features, "skip" if skip else "error")
    found = predict(loaded, read)
    print(card)
    rows = found.rows()
    if out is None:
        table = Table(*rows[0], box=None, pad_edge=False)
        for row in rows[:SHOWN]:
            table.add_row(*map(printable, row.values()))
        Console(highlight=False, markup=False).print(table)
        if len(rows) > SHOWN:
            print(f"... and {len(rows) - SHOWN} more: --out FILE.csv writes all")
    else:
        found.save(out)
        print(f"{len(rows)} predictions written to {out}")
    if found.right is not None:
        print(f"{found.right.sum()} of {len(rows)} right: {100 * found.right.mean():.2f} %")
        seen = trained_on(loaded, read, samples)
        if seen.any():
            were = "was" if seen.sum() == 1 else "were"
            told = f"{seen.sum()} of them {were} trained on, which flatters the model"
            if len(new := found.right[~seen]):
                told += f"; of the other {len(new)}, {new.sum()} are right: {100 * new.mean():.2f} %"
            print(told)
