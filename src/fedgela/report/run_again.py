"""The report's last section: every entry's config, and the commands that run it again."""

import shlex
from dataclasses import fields

from fedgela.flower.terms import Terms
from fedgela.html_page import details, escape, paragraph
from fedgela.report.context import Context, Part, Section, file_name
from fedgela.runfolder import CONFIG
from fedgela.saved.runs import Run
from fedgela.saved.sites import Sites


def run_again(c: Context) -> Section:
    """The exact config of every entry's first seed, and a command for each seed."""
    parts: list[Part] = [
        paragraph("Save a config under the name given, and run its command in the same folder.", "note")
    ]
    for entry in c.setting.entries:
        name = file_name(entry.label)
        lines = [
            f"{_command(run, f'{name}.toml', run is entry.first)} --out runs/{name}-seed-{seed}"
            for seed, run in entry.runs.items()
        ]
        try:
            config = (entry.first.path / CONFIG).read_text(encoding="utf-8")
        except OSError:
            config = entry.experiment.to_toml()
        commands = escape("\n".join(lines))
        shown = f"<p>{escape(name)}.toml:</p>\n<pre>{escape(config)}</pre>\n<pre>{commands}</pre>\n"
        parts.append(details(f"{entry.label}: config and command", shown))
    return Section("Run it again", parts)


def _command(run: Run, config: str, is_configs_own: bool) -> str:
    """The config is the first seed's own; for another its seeds are changed."""
    seed, split = run.seed, run.experiment.partition_seed
    if run.sites is None:
        changes = "" if is_configs_own else f" --seeds {seed} --set partition_seed={split}"
        return f"fedgela run {config}{changes}"
    changes = "" if is_configs_own else f" --set seed={seed} --set partition_seed={split}"
    return f"fedgela federation run DIR {config}{changes}{_options(run.sites)}"


def _options(sites: Sites) -> str:
    """The options of `fedgela federation run` that change figures and are not as by default."""
    usual = {field.name: field.default for field in fields(Terms)}
    changing = ("min_sites", "wire", "secure_aggregation", "dp_noise", "dp_clip", "dp_delta")
    given = {key: getattr(sites.terms, key) for key in changing}
    options = {key: value for key, value in given.items() if value != usual[key]}
    options |= {"test_data": shlex.quote(sites.test_data)} if sites.test_data is not None else {}
    return "".join(_option(key.replace("_", "-"), value) for key, value in options.items())


def _option(name: str, value: object) -> str:
    return f" --{name}" if value is True else f" --{name} {value}"
