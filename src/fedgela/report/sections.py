"""The parts of the report on one setting, in the order they are read."""

import shlex
from dataclasses import fields

from fedgela.flower.terms import Terms
from fedgela.html_page import details, escape, paragraph
from fedgela.report.context import Context, Part, Section, file_name
from fedgela.report.costs import cost_table, efficiency_table
from fedgela.report.holdings import who_holds_what
from fedgela.report.model_pictures import of_models
from fedgela.report.progress_curves import accuracy_curves, angle_curves, other_curves, personal_by_client
from fedgela.report.results import results, what_was_run
from fedgela.report.shared_classes import shared_by_class
from fedgela.report.sites_section import by_site
from fedgela.runfolder import CONFIG
from fedgela.saved.sites import Sites


def sections(context: Context) -> list[Section]:
    made = [
        what_was_run(context),
        results(context),
        accuracy_curves(context),
        personal_by_client(context),
        by_site(context),
        *of_models(context),
        who_holds_what(context),
        shared_by_class(context),
        angle_curves(context),
        other_curves(context),
        costs(context),
        again(context),
    ]
    return [section for section in made if section.parts]


def costs(c: Context) -> Section:
    parts: list[Part] = [cost_table(c.setting, c.federation)]
    efficiency = efficiency_table(c.setting)
    if efficiency is not None:
        parts += ["<h4>Rounds to FedAvg's best GA</h4>\n", efficiency]
    return Section("Time, communication and memory", parts)


def _options(sites: Sites) -> str:
    """Of `fedgela federation run`: those that change figures."""
    usual = {field.name: field.default for field in fields(Terms)}
    given = {
        key: getattr(sites.terms, key) for key in ("min_sites", "wire", "dp_noise", "dp_clip", "dp_delta")
    }
    options = {key: value for key, value in given.items() if value != usual[key]}
    options |= {"test_data": shlex.quote(sites.test_data)} if sites.test_data is not None else {}
    return "".join(f" --{key.replace('_', '-')} {value}" for key, value in options.items())


def again(c: Context) -> Section:
    """The exact config of every entry's first seed, and a command for each seed."""
    parts: list[Part] = [
        paragraph("Save a config under the name given, and run its command in the same folder.", "note")
    ]
    for entry in c.setting.entries:
        name = file_name(entry.label)
        lines = []
        for seed, run in entry.runs.items():
            split = run.experiment.partition_seed
            changes = "" if run is entry.first else f" --seeds {seed} --set partition_seed={split}"
            command = f"fedgela run {name}.toml{changes}"
            if run.sites is not None:
                changes = "" if run is entry.first else f" --set seed={seed} --set partition_seed={split}"
                command = f"fedgela federation run DIR {name}.toml{changes}{_options(run.sites)}"
            lines.append(f"{command} --out runs/{name}-seed-{seed}")
        try:
            config = (entry.first.path / CONFIG).read_text(encoding="utf-8")
        except OSError:
            config = entry.experiment.to_toml()
        commands = escape("\n".join(lines))
        shown = f"<p>{escape(name)}.toml:</p>\n<pre>{escape(config)}</pre>\n<pre>{commands}</pre>\n"
        parts.append(details(f"{entry.label}: config and command", shown))
    return Section("Run it again", parts)
