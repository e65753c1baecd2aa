"""What of an experiment decides its result."""

from fedgela.config import parse_experiment
from fedgela.paper import experiment_of, find_cell
from fedgela.reproduce.settings import differences, hash_of, settings_hash, settings_of

CELL = "main/cifar10/full-dir0.1/fedgela"


def test_where_a_run_is_computed_does_not_count() -> None:
    base = experiment_of(find_cell(CELL))
    elsewhere = base.with_(
        device="cpu", lanes=3, threads=2, data_dir="/somewhere", precision="fp32", checkpoint_every=5, seed=4
    )
    assert hash_of(elsewhere) == hash_of(base)


def test_what_resolve_fills_in_does_not_count() -> None:
    base = experiment_of(find_cell(CELL))
    assert hash_of(base.with_(min_samples=100, partition_seed=0)) == hash_of(base)
    assert hash_of(base.with_(augment=None)) == hash_of(base)
    assert hash_of(base.with_(partition_seed=5)) != hash_of(base)


def test_a_later_version_s_key_that_is_off_does_not_count() -> None:
    """Else a new version would not find the folders of runs that have begun."""
    settings = settings_of(experiment_of(find_cell(CELL)))
    older = {key: value for key, value in settings.items() if key not in ("server_average", "aggregation")}
    assert older.keys() < settings.keys()
    assert settings_hash(older) == settings_hash(settings)


def test_what_decides_the_result_counts() -> None:
    base = experiment_of(find_cell(CELL))
    changes = [{"rounds": 10}, {"lr": 0.02}, {"augment": True}, {"validation": 0.1}, {"dataset": "svhn"}]
    changes.append({"aggregation": "median"})
    others = [base.with_(**change) for change in changes]
    table = base.model_dump()
    others.append(parse_experiment({**table, "algorithm": {"name": "fedgela", "phi": "power:0.5"}}))
    assert len({hash_of(e) for e in [base, *others]}) == 8
    found = differences(settings_of(base), settings_of(others[-1]))
    assert [(d.key, d.wanted, d.found) for d in found] == [("algorithm.phi", "power:1", "power:0.5")]
