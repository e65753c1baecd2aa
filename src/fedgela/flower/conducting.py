"""`fedgela federation run`: hands the run to the server's SuperLink, and shows how it goes."""

import contextlib
import json
import math
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

from fedgela.config import Experiment
from fedgela.data.sources import as_path
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.files import write_atomically, write_json
from fedgela.flower.control import CONNECTION, flwr, registered
from fedgela.flower.folder import FederationFolder
from fedgela.flower.masks import FEWEST
from fedgela.flower.processes import is_listening, last_words
from fedgela.flower.server_app import check_possible
from fedgela.flower.terms import AGREED, ALIVE, ASKED, ERROR, NOTES, STARTED, TERMS, Agreed, Terms, described
from fedgela.flower.wire import Wire
from fedgela.listener import Listener
from fedgela.resolve import located
from fedgela.runfolder import METRICS, RunFolder
from fedgela.runs import already_holds_a_run

CHANGEABLE = ("min_sites", "round_seconds", "wait_seconds")  # terms that may change while a run goes on
CURRENT = ".current"  # in the folder of runs: where the one is that began last
FLOWER_RUN = "flower-run.txt"  # the number by which Flower knows it
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 10.0
POLL_SECONDS = 0.3
APP = """[project]
name = "fedgela-app"
version = "1.0.0"
description = "fedgela on Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedgela"

[tool.flwr.app.components]
serverapp = "fedgela_app.server:app"
clientapp = "fedgela_app.client:app"

[tool.flwr.app.config]
folder = ""
"""


class NotStarted(UserError):
    pass


def begin(
    federation: FederationFolder,
    experiment: Experiment,
    out: Path,
    listener: Listener,
    *,
    test_data: str | None = None,
    **terms: object,
) -> Record:
    """A new run, from its first round to its result."""
    folder = RunFolder(out)
    if folder.exists() or (out / TERMS).exists():
        raise already_holds_a_run(out)
    agreed_on = Terms(
        federation=federation.id,
        run=secrets.token_hex(8),
        sites=federation.sites,
        classes=federation.classes,
        **terms,  # type: ignore[arg-type]
    )
    _check(agreed_on)
    check_possible(experiment, agreed_on)
    # with whole paths for the ServerApp, which runs in another folder; the data is the sites' own
    experiment = located(experiment.with_(dataset="federation", data_dir=None))
    if test_data is not None:
        test_data = _resolved(test_data)
    with _alone(federation, folder):
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(out / ASKED, experiment.to_toml())
        return _go(federation, folder, agreed_on, test_data, listener)


def resume(federation: FederationFolder, out: Path, listener: Listener, **changed: object) -> Record:
    """Go on from the last round that the run's folder holds; some of its terms may have changed."""
    folder = RunFolder(out)
    try:
        asked = json.loads((out / TERMS).read_text())
        terms = replace(Terms.of(asked["terms"]), **changed)  # type: ignore[arg-type]
        test_data = asked["test_data"]
        _check(terms)
    except FileNotFoundError:
        raise UserError(f"{out}: there is no run of a federation in this folder (no {TERMS})") from None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{out / TERMS}: is damaged ({error}); without it the run cannot go on") from None
    if terms.federation != federation.id:
        raise UserError(f"{out}: is a run of another federation than {federation.path}")
    result = folder.result()
    if result is not None:
        listener.note("this run is finished")
        return result
    _check_agreed(folder)
    with _alone(federation, folder):
        return _go(federation, folder, terms, test_data, listener)


def _resolved(test_data: str) -> str:
    """With its whole path, as the experiment's."""
    try:
        path = as_path(test_data, None)
    except UserError as error:
        raise UserError(f"--test-data: {str(error).removeprefix('dataset: ')}") from None
    return test_data if path is None else str(path.resolve())


def _check(terms: Terms) -> None:
    """A UserError where a term is out of its range, as NaN always is."""
    everybody = len(terms.sites)
    if terms.secure_aggregation and min(everybody, terms.min_sites) < FEWEST:
        what = f"--min-sites {terms.min_sites}" if everybody >= FEWEST else "a federation of one site"
        raise UserError(f"--secure-aggregation: a sum needs {FEWEST} sites or more, but this is {what}")
    for holds, option, range_, found in (
        (1 <= terms.min_sites <= everybody, "min-sites", f"from 1 to all {everybody}", terms.min_sites),
        (0 < terms.round_seconds < math.inf, "round-seconds", "above 0", terms.round_seconds),
        (0 <= terms.wait_seconds < math.inf, "wait-seconds", "0 or more", terms.wait_seconds),
        (terms.wire in get_args(Wire), "wire", "fp32, bf16 or fp16", terms.wire),
        (0 <= terms.dp_noise < math.inf, "dp-noise", "0 or more", terms.dp_noise),
        (0 < terms.dp_clip < math.inf, "dp-clip", "above 0", terms.dp_clip),
        (0 < terms.dp_delta < 1, "dp-delta", "between 0 and 1", terms.dp_delta),
    ):
        if not holds:
            raise UserError(f"--{option}: {range_}, not {found}")


def _check_agreed(folder: RunFolder) -> None:
    """A UserError where a run has begun, but what its sites agreed on is missing or damaged."""
    path = folder.path / AGREED
    if not folder.exists():
        return
    try:
        Agreed.read(path)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; without it the run cannot go on") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is damaged ({error}); without it the run cannot go on") from None


@contextlib.contextmanager
def _alone(federation: FederationFolder, folder: RunFolder) -> Iterator[None]:
    """A federation does one run at a time: sites train one model after the other, and would be late in both.
    A run lives in the command that conducts it, and in its ServerApp, which outlives a command that is
    killed; each holds a lock as long as it lives."""
    if not is_listening(federation.host_here, federation.port):
        raise UserError(
            f"no server answers at {federation.address}; start it with "
            f"'fedgela federation server {federation.path}'"
        )
    note = federation.runs / CURRENT
    current = RunFolder(Path(note.read_text()) if note.exists() else folder.path)
    busy = UserError(
        f"a run is going on in {current.path}, and a federation does one at a time; "
        f"'fedgela watch {current.path}' shows it"
    )
    federation.runs.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(RunFolder(federation.runs).locked())
        except UserError:
            raise busy from None
        if current.is_locked():
            raise busy
        write_atomically(note, str(folder.path.resolve()))
        yield


def _go(
    federation: FederationFolder, folder: RunFolder, terms: Terms, test_data: str | None, listener: Listener
) -> Record:
    path = folder.path
    asked = {
        "folder": str(federation.path.resolve()),
        "terms": asdict(terms),
        "test_data": test_data,
        # a run keeps its list of sites: later ones take no part in it, and removed ones stay away
        "nodes": {
            str(node): terms.sites.index(name)
            for node, name in registered(federation).items()
            if name in terms.sites
        },
    }
    with folder.locked():  # nobody else conducts it; the ServerApp takes the lock from here
        write_json(path / TERMS, asked)
        for old in (ALIVE, ERROR, STARTED):
            (path / old).unlink(missing_ok=True)
    log = federation.server / "superlink.log"
    notes = Followed(path / NOTES, at=(path / NOTES).stat().st_size if (path / NOTES).exists() else 0)
    app = _app(federation)
    if (path / FLOWER_RUN).exists():
        # Flower takes a run whose server was killed for alive for most of a minute, and sites that were just
        # getting its messages would try until then
        with contextlib.suppress(UserError):
            flwr(federation, "stop", (path / FLOWER_RUN).read_text(), CONNECTION)
    answer = flwr(federation, "run", str(app), CONNECTION, "--run-config", f'folder="{path.resolve()}"')
    if not answer.get("success"):
        raise UserError(f"Flower did not start the run: {answer.get('error-message')}")
    run = str(answer["run-id"])
    write_atomically(path / FLOWER_RUN, run)
    try:
        return _watch(federation, folder, listener, notes, log)
    except NotStarted:
        with contextlib.suppress(UserError):
            flwr(federation, "stop", run, CONNECTION)  # or it would start whenever Flower can, unwatched
        raise
    except KeyboardInterrupt:
        flwr(federation, "stop", run, CONNECTION)
        end = time.monotonic() + SECONDS_TO_STOP
        while folder.is_locked() and time.monotonic() < end:  # the next run is refused until then
            time.sleep(POLL_SECONDS)
        raise


def _watch(
    federation: FederationFolder, folder: RunFolder, listener: Listener, notes: "Followed", log: Path
) -> Record:
    """Rounds and notes as they come, until there is a result or nobody left to make one."""
    path = folder.path
    metrics: Followed | None = None
    end = time.monotonic() + SECONDS_TO_START
    again = f"'fedgela federation run {federation.path} --resume --out {path}' goes on from the last round"
    while True:
        # read in the reverse of the order of writing, so that nothing is told before what it follows
        alive = _alive(path)
        result = folder.result()
        noted = notes.lines()
        if metrics is None and (path / STARTED).exists():
            started = json.loads((path / STARTED).read_text())
            metrics = Followed(path / METRICS, at=started["metrics_bytes"])
            experiment = folder.experiment()
            listener.started(experiment, started["done"])
            listener.note(described(experiment))
        for line in metrics.lines() if metrics else []:
            listener.round(json.loads(line))
        for line in noted:
            listener.note(line)
        if result is not None:
            listener.finished(result)
            return result
        if (path / ERROR).exists():
            raise UserError(f"{(path / ERROR).read_text().strip()}")
        if alive is False:
            time.sleep(POLL_SECONDS)
            if folder.result() is None and not (path / ERROR).exists():
                raise UserError(f"the run's server process has ended without a result; {again}")
        elif alive is None and time.monotonic() > end:
            raise NotStarted(
                f"the run did not start within {SECONDS_TO_START:g} s; end 'fedgela federation server' and "
                f"start it again. Its log: {last_words(log)}"
            )
        time.sleep(POLL_SECONDS)


def _alive(path: Path) -> bool | None:
    """Whether the ServerApp is alive; None where it has not begun yet."""
    return RunFolder(path).is_locked() if (path / ALIVE).exists() else None


class Followed:
    """The whole lines of a file that grows, each once, from a place on."""

    def __init__(self, path: Path, at: int = 0) -> None:
        self.path, self.at = path, at

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self.at += len(whole) + 1
        return whole.decode().splitlines()


def _app(federation: FederationFolder) -> Path:
    """Flower's package of the run: two lines that name what is installed everywhere."""
    folder = federation.server / "app"
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "fedgela_app"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text("from fedgela.flower.server_app import app\n\n__all__ = ['app']\n")
    (package / "client.py").write_text("from fedgela.flower.client_app import app\n\n__all__ = ['app']\n")
    return folder
