"""The parts of the report on one setting, in the order they are read."""

from fedgela.report.context import Context, Part, Section, file_name
from fedgela.report.costs import cost_table, efficiency_table
from fedgela.report.holdings import who_holds_what
from fedgela.report.markup import details, escape, paragraph
from fedgela.report.model_pictures import of_models
from fedgela.report.progress_curves import accuracy_curves, angle_curves, other_curves, personal_by_client
from fedgela.report.results import results, what_was_run


def sections(context: Context) -> list[Section]:
    made = [
        what_was_run(context),
        results(context),
        accuracy_curves(context),
        personal_by_client(context),
        *of_models(context),
        who_holds_what(context),
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
            lines.append(f"fedgela run {name}.toml{changes} --out runs/{name}-seed-{seed}")
        try:
            config = (entry.first.path / "config.toml").read_text(encoding="utf-8")
        except OSError:
            config = entry.experiment.to_toml()
        commands = escape("\n".join(lines))
        shown = f"<p>{escape(name)}.toml:</p>\n<pre>{escape(config)}</pre>\n<pre>{commands}</pre>\n"
        parts.append(details(f"{entry.label}: config and command", shown))
    return Section("Run it again", parts)
