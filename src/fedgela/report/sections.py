"""The parts of the report on one setting, in the order they are read."""

from fedgela.report.context import Context, Section
from fedgela.report.costs import costs
from fedgela.report.holdings import who_holds_what
from fedgela.report.model_pictures import of_models
from fedgela.report.progress_curves import accuracy_curves, angle_curves, other_curves, personal_by_client
from fedgela.report.results import results, what_was_run
from fedgela.report.run_again import run_again
from fedgela.report.shared_classes import shared_by_class
from fedgela.report.sites_section import by_site


def sections(context: Context) -> list[Section]:
    made = [
        results(context),
        what_was_run(context),
        accuracy_curves(context),
        personal_by_client(context),
        by_site(context),
        *of_models(context),
        who_holds_what(context),
        shared_by_class(context),
        angle_curves(context),
        other_curves(context),
        costs(context),
        run_again(context),
    ]
    return [section for section in made if section.parts]
