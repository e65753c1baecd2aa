"""The command line: options are checked and results printed here, and the work is done elsewhere."""

import sys
import warnings
from typing import Annotated

import typer

import fedgela
from fedgela.cli import deploying, looking, measuring, training
from fedgela.cli.complaints import complain, show_warning
from fedgela.errors import UserError
from fedgela.flower.cli import app as federation_commands

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning when clients hold only some of the classes.",
)
# in the order in which they are used
COMMANDS = {
    "Before training": (looking.inspect, training.burden),
    "Training": (training.run, training.resume, training.compare, training.tune),
    "What came out": (looking.watch, looking.report),
    "Trained models": (deploying.predict, deploying.export),
    "The paper, and speed": (measuring.reproduce, looking.theory, measuring.bench),
}
for purpose, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=purpose)(command)
app.add_typer(federation_commands, name="federation", rich_help_panel="Real sites")


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
    warnings.showwarning = show_warning
    try:
        app()
    except UserError as error:
        sys.exit(complain(str(error)))
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        sys.exit(complain(str(error)))
    except KeyboardInterrupt:  # the view has already said how to go on
        sys.exit(130)
