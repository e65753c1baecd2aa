"""Lines from runs made elsewhere: a finished run's folder is recognised by its settings; a ledger's lines are
taken over as they are."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedgela.config import Experiment
from fedgela.errors import UserError
from fedgela.paper import Cell
from fedgela.reproduce.counting import cells_by_settings, wanted_settings
from fedgela.reproduce.entries import entry_of_run
from fedgela.reproduce.ledger import Entry, read_ledger, with_variant
from fedgela.reproduce.settings import differences, method_of, settings_hash, settings_of
from fedgela.reproduce.standing import of_the_paper
from fedgela.runfolder import CONFIG, RunFolder

NAMED = 4  # differences that are told


def gather(
    path: Path, held: Sequence[Entry], cell: Cell | None = None, variant: str | None = None
) -> tuple[list[Entry], list[str]]:
    """Lines of a run's folder, of all runs below a folder, or of another ledger; and why others give none."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    if path.is_file() and path.suffix == ".jsonl":
        if cell is not None or variant is not None:
            raise UserError(
                f"{path}: a ledger's lines are taken over as they are: --cell and --data-note are for runs"
            )
        return _known_lines(path)
    folders = list(_runs_below(path))
    if not folders:
        raise UserError(f"{path}: there is no run in or below this folder (no {CONFIG}), and it is no .jsonl")
    found, reasons = [], []
    for folder in folders:
        try:
            run = RunFolder(folder)
            if run.result() is None:
                raise UserError(f"{folder}: the run is not finished; 'fedgela resume {folder}' goes on")
            experiment = run.experiment()
            if cell is not None:
                _check_method(experiment, cell, folder)
            entry = entry_of_run(folder, cell or recognise(experiment, folder))
            found.append(with_variant(entry, variant, held))
        except UserError as error:
            reasons.append(str(error))
    return found, reasons


def _known_lines(path: Path) -> tuple[list[Entry], list[str]]:
    known, strange = of_the_paper(read_ledger(path))
    return known, [f"{path}: the paper has no cell {line.cells[0]!r}" for line in strange]


def _check_method(experiment: Experiment, cell: Cell, where: Path) -> None:
    mine, wanted = method_of(experiment), cell.config["algorithm"]["name"]
    if mine != wanted:
        raise UserError(f"{where}: is a run of {mine}, and cannot count for {cell.id}")


def _runs_below(path: Path) -> Iterator[Path]:
    return (config.parent for config in sorted(path.rglob(CONFIG)))


def recognise(experiment: Experiment, where: Path) -> Cell:
    """The cell that a run is, the seed aside; a UserError that tells what is not as in the nearest one."""
    settings = settings_of(experiment)
    found = cells_by_settings().get(settings_hash(settings))
    if found is not None:
        return found[0]
    nearest, apart = min(
        ((cell, differences(wanted_settings(cell), settings)) for cell, *_ in cells_by_settings().values()),
        # the data and the method make a cell what it is; of several, the paper's first
        key=lambda pair: sum(1 + 9 * (d.key in ("dataset", "algorithm.name", "partition")) for d in pair[1]),
    )
    told = "; ".join(f"{d.key} is {d.found!r}, not {d.wanted!r}" for d in apart[:NAMED])
    more = f" (and {len(apart) - NAMED} more)" if len(apart) > NAMED else ""
    raise UserError(
        f"{where}: no cell of the paper is this run; the nearest is {nearest.id}: {told}{more}\n"
        f"to count it as that cell all the same, with this said in the table: --cell {nearest.id}"
    )
