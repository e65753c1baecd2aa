"""`fedgela federation ...`: real clients, thin."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from fedgela.errors import UserError
from fedgela.flower import ROUND_SECONDS, WAIT_SECONDS

if TYPE_CHECKING:
    from fedgela.flower.folder import FederationFolder

app = typer.Typer(no_args_is_help=True, help="Train on separate machines whose data stays where it is.")

REPORT = "report.html"  # in the run's folder
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the federation's folder")]


def _end_in_order() -> None:
    """A service manager's SIGTERM ends child processes too, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _say(text: str) -> None:
    print(text, flush=True)


def _log(text: str) -> None:
    """Of a service, which goes on where its log cannot be written, on a full disk above all."""
    with contextlib.suppress(OSError):
        _say(text)


@app.command()
def init(
    folder: Folder,
    sites: Annotated[
        int | None, typer.Option(min=1, max=1000, help="how many: site-1, site-2, ...; by default 3")
    ] = None,
    names: Annotated[str | None, typer.Option(help="the sites' own names, by comma, instead")] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="class names by comma, or a file with one a line; else collected from the sites"),
    ] = None,
    host: Annotated[str, typer.Option(help="by which sites reach the server")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="of the server on its own machine")] = 8000,
    proxy_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="of nginx, through which sites come in: 8443 unless --host is this machine; 0 for none",
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="that the certificates are valid")] = 825,
) -> None:
    """Make a federation: certificates, a key for every site, and a folder for each."""
    from fedgela.flower import folder as folders
    from fedgela.flower import nginx, require_flower
    from fedgela.flower.addresses import address_of

    require_flower()
    made = folders.init(folder, _sites(sites, names), host, port, _classes(classes), days, proxy_port)
    _say(f"written to {folder}: give each site its own folder, {', '.join(made.sites)}, and nothing else")
    address = made.entrance
    direct = address == address_of(host, port)
    # the server listens at 127.0.0.1 unless it is told otherwise
    bind = f" --bind {host}" if direct and host not in ("127.0.0.1", "localhost") else ""
    _say(f"then: fedgela federation server {folder}{bind}")
    if bind:
        _say(f"sites come in at {address} directly: the server must listen there, which --bind makes it do")
    if not direct:
        _say(f"sites come in at {address}: nginx -c {(made.server / nginx.CONFIGURATION).resolve()}")


@app.command()
def add(
    folder: Folder,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="what the further sites are called")],
) -> None:
    """Let further sites take part in the runs that begin from now on: a key and a folder for each."""
    from fedgela.flower import require_flower

    require_flower()
    from fedgela.flower.folder import FederationFolder, add_sites

    made = add_sites(FederationFolder.read(folder), names)
    _say(f"written to {folder}: give each site its own folder, {', '.join(names)}, and nothing else")
    _tell_the_server(made)


@app.command()
def remove(
    folder: Folder, name: Annotated[str, typer.Argument(metavar="NAME", help="what the site is called")]
) -> None:
    """Let a site take no part any more, as when its key was stolen; `add` makes it another."""
    from fedgela.flower import require_flower

    require_flower()
    from fedgela.flower.folder import FederationFolder, remove_site

    made = remove_site(FederationFolder.read(folder), name)
    _say(f"{name} is no site of {folder} any more")
    if (folder / name).exists():
        _say(f"its folder stays, {folder / name}; the key in it is not let in any more")
    _tell_the_server(made)


def _tell_the_server(federation: "FederationFolder") -> None:
    from fedgela.flower.control import synchronise
    from fedgela.flower.processes import is_listening

    if is_listening(federation.host_here, federation.port):
        synchronise(federation)
        _say("the server knows")
    else:
        _say(f"the server will know once it is started: fedgela federation server {federation.path}")


def _sites(count: int | None, names: str | None) -> list[str]:
    if names is None:
        return [f"site-{k + 1}" for k in range(3 if count is None else count)]
    listed = _listed(names)
    if not listed or (count is not None and count != len(listed)):
        wanted = "at least one" if count is None else f"as many as --sites, {count}"
        raise UserError(f"--names: there must be {wanted}, not {len(listed)}")
    return listed


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _classes(text: str | None) -> list[str]:
    if text is None:
        return []
    if "," in text:
        found = _listed(text)
    elif not Path(text).is_file():
        raise UserError(f"--classes: there is no file {text}; write names by comma, or name a file")
    else:
        try:
            found = [line.strip() for line in Path(text).read_text("utf-8-sig").splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise UserError(f"--classes: {text} is no text; it should have a class name a line") from None
    if not found:
        raise UserError(f"--classes: there are no names in {text!r}")
    return found


@app.command()
def server(
    folder: Folder,
    bind: Annotated[
        str, typer.Option(help="address to listen at; whoever reaches it can start code on all sites")
    ] = "127.0.0.1",
) -> None:
    """Run the server: Flower's SuperLink with TLS and the sites' keys. Ctrl-C ends it."""
    from fedgela.flower import require_flower

    require_flower()
    from fedgela.flower.addresses import address_of, is_this_machine
    from fedgela.flower.folder import FederationFolder
    from fedgela.flower.link import Link

    _end_in_order()
    federation = FederationFolder.read(folder)
    address = address_of(bind, federation.port)
    link = Link(federation, bind, _log)
    try:
        if not is_this_machine(bind):
            _log(f"note: whoever reaches {address} can start code on all sites; see docs/threat-model.md")
        _log(f"the server is ready at {address}; sites: {', '.join(federation.sites)}")
        link.wait(_log)
    finally:
        link.stop()
    raise typer.Exit(1)


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the site's own folder")],
    data: Annotated[str | None, typer.Option(help="a folder, an .npz, .parquet or .csv file")] = None,
    dataset: Annotated[str | None, typer.Option(help="a data set's name instead")] = None,
    data_dir: Annotated[str | None, typer.Option(help="where NAME.npz files lie")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="of images that are decoded")] = None,
    skip: Annotated[
        bool, typer.Option("--skip-unreadable", help="leave out images that cannot be read")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    share_classes: Annotated[
        bool,
        typer.Option("--share-classes", help="tell the server this site's class counts and figures by class"),
    ] = False,
    masked_only: Annotated[
        bool, typer.Option("--masked-only", help="take part only in runs with --secure-aggregation")
    ] = False,
) -> None:
    """Take part as a site, with data that stays here. Ctrl-C ends it; it can be started again at any time."""
    from fedgela.flower import require_flower

    require_flower()
    from fedgela.flower.folder import SiteFolder
    from fedgela.flower.site_process import open_site, serve

    if (data is None) == (dataset is None):
        raise UserError("give this site's data: --data PATH, or --dataset NAME")
    place = SiteFolder.read(folder)
    if data is not None and not Path(data).exists():
        raise UserError(f"--data: there is no folder or file {data}")
    _end_in_order()
    named = str(Path(data).resolve()) if data is not None else str(dataset)
    unreadable: Literal["skip", "error"] = "skip" if skip else "error"
    opened = open_site(
        place, named, data_dir, image_size, unreadable, device, share_classes, masked_only, _log
    )
    try:
        serve(place, opened, _log)
    except (KeyboardInterrupt, SystemExit) as end:
        # at once, since the interpreter's own end would be aborted by a thread that trains
        os._exit(130 if isinstance(end, KeyboardInterrupt) else 128 + signal.SIGTERM)


@app.command()
def run(
    context: typer.Context,
    folder: Folder,
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="an experiment in TOML, less its data")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="the run's folder; by default in DIR/runs")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out, or the last")
    ] = False,
    test_data: Annotated[
        str | None, typer.Option(help="the server's own data, whose test part GA is measured on")
    ] = None,
    min_sites: Annotated[
        int | None,
        typer.Option(min=1, help="sites without which no round begins: 1, or 2 with --secure-aggregation"),
    ] = None,
    round_seconds: Annotated[
        float, typer.Option(help="seconds after which a round goes on without a site")
    ] = ROUND_SECONDS,
    wait_seconds: Annotated[
        float, typer.Option(help="seconds that missing sites are waited for")
    ] = WAIT_SECONDS,
    wire: Annotated[str, typer.Option(help="how weights travel: fp32, bf16 or fp16")] = "fp32",
    secure_aggregation: Annotated[
        bool,
        typer.Option(
            "--secure-aggregation", help="the server learns the sum of the updates, and no single one"
        ),
    ] = False,
    dp_noise: Annotated[
        float, typer.Option(min=0, help="differential privacy of sites: noise by clip; 0 is off")
    ] = 0.0,
    dp_clip: Annotated[float, typer.Option(help="the length that a site's change is cut to")] = 1.0,
    dp_delta: Annotated[float, typer.Option(help="at which epsilon is told")] = 1e-5,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any other key of the config")
    ] = None,
) -> None:
    """Train on the sites that are connected; the run's folder is like a local run's."""
    from fedgela.flower import require_flower

    require_flower()
    from fedgela.config import SPLITTING, parse_experiment, read_toml, set_key
    from fedgela.flower import conducting
    from fedgela.flower.folder import FederationFolder
    from fedgela.progress import make_view

    federation = FederationFolder.read(folder)
    terms: dict[str, Any] = {
        "min_sites": min_sites or (2 if secure_aggregation else 1),
        "round_seconds": round_seconds,
        "wait_seconds": wait_seconds,
        "wire": wire,
        "secure_aggregation": secure_aggregation,
        "dp_noise": dp_noise,
        "dp_clip": dp_clip,
        "dp_delta": dp_delta,
    }
    with make_view(Console()) as view:
        named = f" --out {out}" if out else ""
        view.goes_on = f"'fedgela federation run {folder} --resume{named}' goes on"
        if resume:
            given = _given(context) - {"folder", "out", "resume"}
            if fixed := given - set(conducting.CHANGEABLE):
                raise UserError(
                    f"{', '.join(sorted(map(_option, fixed)))}: cannot change while a run goes on; "
                    f"{', '.join(map(_option, conducting.CHANGEABLE))} can"
                )
            out = out or _last(federation.runs)
            result = conducting.resume(federation, out, view, **{name: terms[name] for name in given})
        else:
            table: dict[str, Any] = read_toml(config) if config else {}
            for setting in set_ or []:
                set_key(table, setting)
            out = out or _next(federation.runs)
            experiment = parse_experiment(table, str(config or "config"))
            if unused := [key for key in ("dataset", "data_dir", *SPLITTING) if key in table]:
                view.note(f"{', '.join(unused)}: not used, since sites have data of their own")
            result = conducting.begin(federation, experiment, out, view, test_data=test_data, **terms)
    print_result(result, out)


def _given(context: typer.Context) -> set[str]:
    """What the command line has, and is not by default."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _option(parameter: str) -> str:
    return "CONFIG.toml" if parameter == "config" else "--" + parameter.strip("_").replace("_", "-")


def _numbered(runs: Path) -> dict[int, Path]:
    return {int(path.name): path for path in runs.glob("*") if path.name.isdecimal()}


def _next(runs: Path) -> Path:
    return runs / f"{1 + max(_numbered(runs), default=0):03d}"


def _last(runs: Path) -> Path:
    from fedgela.flower.terms import TERMS

    held = {number: path for number, path in _numbered(runs).items() if (path / TERMS).exists()}
    if not held:
        raise UserError(f"{runs}: there is no run to go on with; name its folder with --out")
    return held[max(held)]


def print_result(result: dict[str, Any], out: Path) -> None:
    for name in ("GA", "PA", "PA_finetuned", "local_accuracy"):
        if name in result:
            r = result[name]
            _say(f"{name}  best {r['best']:.2f} (round {r['best_round']})  last {r['last']:.2f}")
        elif name in ("GA", "PA"):
            _say(f"{name}  is not known")  # the run's notes say why
    _say(f"written to {out}, its report to {out / REPORT}" if _write_report(out) else f"written to {out}")


def _write_report(out: Path) -> bool:
    """A run that is done stays so, whatever becomes of its report."""
    from fedgela.report import make_report

    try:
        made = make_report([out])
        made.save(out / REPORT)
    except UserError as error:
        _say(f"note: no report: {error}")
        return False
    for line in made.notes:
        _say(f"note: {line}")
    return True


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="a new folder for the federation and its run")] = Path(
        "federation-demo"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="rounds, T")] = 5,
    algorithm: Annotated[str, typer.Option(help="a method's name")] = "fedgela",
) -> None:
    """All of it on this machine: a server and three sites with two digits each, TLS and keys on."""
    from fedgela.flower import require_flower

    require_flower()
    from fedgela.flower.demo import run_demo
    from fedgela.progress import make_view

    with make_view(Console()) as view:
        view.goes_on = "the demo starts anew, in another folder (--out)"
        result, folder = run_demo(out, rounds, algorithm, view, lambda text: print(text, file=sys.stderr))
    print_result(result, folder)
