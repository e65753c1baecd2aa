"""Commands that train: run, resume, compare, tune, burden."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgela.cli.complaints import complain
from fedgela.cli.options import (
    Algorithms,
    Config,
    Out,
    Seeds,
    TensorBoard,
    data_of,
    describes_an_experiment,
    methods_of,
    one_of,
    seeds_of,
    table_of,
)
from fedgela.errors import UserError


@describes_an_experiment()
def run(
    context: typer.Context,
    out: Out,
    config: Config = None,
    seeds: Seeds = None,
) -> None:
    """Train one method, on one seed or several, into a folder."""
    from fedgela import runs
    from fedgela.config import parse_experiment
    from fedgela.files import check_apart
    from fedgela.progress import training_view
    from fedgela.seeds import run_seeds

    wanted = seeds_of(seeds)
    experiment = parse_experiment(table_of(context), str(config or "config"))
    check_apart(out, *data_of(experiment))
    if wanted is not None and len(wanted) == 1:
        experiment, wanted = experiment.with_(seed=wanted[0]), None
    with training_view(Console(), len(wanted or [0])) as view:
        view.folder = out
        result = run_seeds(experiment, wanted, out, view) if wanted else runs.run(experiment, out, view)
    _print_result(result, out)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the folder of a run, or of its seeds")],
    tensorboard: TensorBoard = None,
) -> None:
    """Continue a run after any interruption; it ends as if it had never been interrupted."""
    from fedgela.progress import training_view
    from fedgela.runs import resume as resume_run
    from fedgela.seeds import holds_seeds, resume_seeds

    with training_view(Console()) as view:
        view.goes_on = f"'fedgela resume {folder}' goes on"
        go_on = resume_seeds if holds_seeds(folder) else resume_run
        result = go_on(folder, view, tensorboard)
    _print_result(result, folder)


@describes_an_experiment("algorithm", "engine")
def compare(
    context: typer.Context,
    out: Out,
    config: Config = None,
    algorithms: Algorithms = None,
    seeds: Seeds = None,
) -> None:
    """Train several methods on the same federation, and print one table."""
    from fedgela import compare as comparing
    from fedgela.files import check_apart
    from fedgela.progress import SAME_COMMAND, training_view

    experiments, wanted = methods_of(context)
    check_apart(out, *data_of(*experiments.values()))
    console = Console()
    with training_view(console, len(experiments) * len(wanted)) as view:
        view.goes_on = SAME_COMMAND
        comparison = comparing.compare(experiments, wanted, out, view)
    if console.is_terminal:
        console.print(comparison.to_rich())
    else:
        print(comparison.to_text(), end="")
    print(f"written to {out}")
    if any(row.errors for row in comparison.rows):
        raise typer.Exit(1)


@describes_an_experiment("algorithm", "engine", "track", "tensorboard")
def tune(
    context: typer.Context,
    out: Out,
    config: Config = None,
    algorithms: Algorithms = None,
    trials: Annotated[int, typer.Option(min=1, help="settings tried, the same for every method")] = 8,
    validation: Annotated[
        float, typer.Option(help="share of each client's training samples to choose by")
    ] = 0.2,
    by: Annotated[str, typer.Option(help="what is chosen by: GA, PA or both")] = "both",
    seeds: Seeds = None,
) -> None:
    """Search each method's own grid on validation data, and write the chosen values as a config."""
    from fedgela import tune as tuning
    from fedgela.files import check_apart
    from fedgela.progress import SAME_COMMAND, training_view

    metric = one_of("--by", by, "GA", "PA", "both")
    if not 0 < validation < 1:
        raise UserError(f"--validation: a share above 0 and below 1, not {validation:g}")
    if trials > len(tuning.LR_FACTORS):
        raise UserError(f"--trials: at most {len(tuning.LR_FACTORS)}, the learning rates FedAvg can try")
    experiments, wanted = methods_of(context)
    check_apart(out, *data_of(*experiments.values()))
    short = {name: tuning.left_out(experiment, trials) for name, experiment in experiments.items()}
    told = []
    for name, (points, rates) in short.items():
        parts = [f"{points} points of its own grid"] * bool(points)
        parts += [f"{rates} of fedavg's {trials} learning rates"] * bool(rates)
        told += [f"{name} {' and '.join(parts)}"] * bool(parts)
    if told:
        leave = "1 trial leaves" if trials == 1 else f"{trials} trials leave"
        complain(f"note: {leave} out: {'; '.join(told)}")
    total = len(experiments) * len(wanted) * trials
    with training_view(Console(), total) as view:
        view.goes_on = SAME_COMMAND
        done = tuning.tune(experiments, wanted, trials, validation, metric, out, view)
    best = tuning.best_of(done, metric)
    for name, trial in best.items():
        settings = "  ".join(f"{k}={v}" for k, v in trial.settings.items() if v is not None)
        score = trial.error or f"GA {trial.GA:.2f}  PA {trial.PA:.2f}"
        print(f"{name:12s} {score}  {settings}")
    print(f"written to {out / 'tuned.toml'}: run it with 'fedgela compare {out / 'tuned.toml'} --out DIR'")
    if ends := tuning.at_an_end(done, best):
        complain(f"note: of the learning rates tried, there may be better ones beyond: {'; '.join(ends)}")
    failed = sum(trial.error is not None for trial in done)
    if failed:
        complain(f"{failed} of {len(done)} trials failed, and were not chosen from")
        raise typer.Exit(1)


@describes_an_experiment("algorithm", "rounds", "lr", "engine", "track", "tensorboard")
def burden(
    context: typer.Context,
    config: Config = None,
    algorithms: Algorithms = "all",
    repetitions: Annotated[int, typer.Option(min=1, help="how often each method is timed")] = 5,
    out: Annotated[Path | None, typer.Option("--out", help="a JSON file to write")] = None,
) -> None:
    """Measure what each method costs a client: time, and parameters held, kept and sent."""
    from fedgela import burden as measuring
    from fedgela.files import check_file, write_json

    experiments = methods_of(context)[0]
    if out is not None:
        read = data_of(*experiments.values())
        check_file(out, "a JSON", *read, *([config] if config is not None else []))
    burdens = measuring.measure(experiments, repetitions)
    print("\n".join(measuring.lines(burdens)))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, [vars(b) for b in burdens])


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def value(held: Any) -> float:
        return float(held["mean"] if isinstance(held, dict) else held)

    return all(abs(value(one[when]) - value(other[when])) < 1 for when in ("best", "last"))


def _print_result(result: dict[str, Any], out: Path) -> None:
    from fedgela.over_seeds import mean_std
    from fedgela.tables import DIVERGED, Row

    several = "seeds" in result
    runs = zip(result["seeds"], result["runs"], strict=True) if several else [(0, result)]
    lost = Row("", dict(runs)).diverged()
    for name in ("GA", "GA_balanced", "PA", "PA_balanced", "PA_finetuned", "GA_locals"):
        # balanced accuracy is only shown where it differs from accuracy by a point or more
        plain = name.removesuffix("_balanced")
        if name not in result or (name != plain and _alike(result[name], result[plain])):
            continue
        r = result[name]
        if several:
            parts = [f"{w} {mean_std(r[w])}" for w in ("best", "last")]
            parts.append(f"over {len(result['seeds'])} seed{'s' * (len(result['seeds']) > 1)}")
        else:
            parts = [f"{w} {r[w]:.2f} (round {r[w + '_round']})" for w in ("best", "last")]
        print("  ".join([f"{name} †" if lost else name, *parts]))
    if lost:
        rounds = [f"seed {seed} in round {n}" if several else f"round {n}" for seed, n in lost.items()]
        print(f"{DIVERGED} ({', '.join(rounds)})")
    print(f"written to {out}")
