import datetime
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedgela.algorithms import ALGORITHMS, FedGELA
from fedgela.config import Experiment, known_keys, parse_experiment, read_toml, set_key
from fedgela.errors import UserError, did_you_mean


def refused(table: dict[str, Any]) -> str:
    """The error that a config ends in, of at most two lines."""
    with pytest.raises(UserError) as error:
        parse_experiment(table)
    text = str(error.value)
    assert 1 <= len(text.splitlines()) <= 2
    assert all(line.startswith("config: ") for line in text.splitlines())
    return text


# -- defaults ------------------------------------------------------------------------------------------


def test_defaults_are_the_papers() -> None:
    experiment = parse_experiment({})
    assert experiment == Experiment()
    assert (experiment.optimizer, experiment.lr, experiment.momentum) == ("sgd", 0.01, 0.9)
    assert (experiment.weight_decay, experiment.batch_size, experiment.epochs) == (1e-4, 100, 10)
    assert (experiment.schedule, experiment.finetune_epochs) == ("constant", 10)
    assert experiment.algorithm == ALGORITHMS["fedgela"]()
    assert (experiment.algorithm.phi, experiment.algorithm.phi_floor) == ("power:1", 0.0)


def test_an_experiment_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Experiment().lr = 1.0


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"lrr": 0.1}, "there is no key 'lrr' (did you mean 'lr'?)"),
        ({"sample": 3, "clients": 2}, "sample: 3 clients a round are more than all 2"),
        ({"algorithm": FedGELA(E_W=-1.0)}, "algorithm.E_W: should be greater than 0, not -1.0"),
        ({"rounds": 0, "lr": "fast"}, "rounds: should be greater than or equal to 1, not 0\nlr: should be a"),
    ],
)
def test_a_mistake_in_python_is_told_as_in_a_config(mistake: dict[str, Any], message: str) -> None:
    for made in (Experiment, Experiment().with_):
        with pytest.raises(UserError) as error:
            made(**mistake)
        assert str(error.value).startswith(message)


# -- TOML in, TOML out ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"clients": 50, "sample": 10, "partition": "classes:3", "seed": 2**63 - 1, "lr": 1e-05},
        {"schedule": "step:10:0.5", "validation": 0.1, "model": "resnet18", "partition_seed": 3},
        {"dataset": 'odd "name"\n', "data_dir": "/a\\b"},
        {"algorithm": "fedavg"},
        {"algorithm": {"name": "fedgela", "logit_scale": 0.1, "phi": "paper-exp", "softmax": "present"}},
        {"algorithm": {"name": "fedgela", "etf": False}},
        *({"algorithm": name} for name in ALGORITHMS),
    ],
)
def test_toml_round_trip(table: dict[str, Any]) -> None:
    experiment = parse_experiment(table)
    again = parse_experiment(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert type(again.algorithm) is type(experiment.algorithm)
    assert again.to_toml() == experiment.to_toml()


def test_with_changes_some_values_and_checks_them() -> None:
    experiment = parse_experiment({"clients": 5, "algorithm": {"name": "fedge", "E_W": 4.0}})
    changed = experiment.with_(seed=3)
    assert changed.seed == 3
    assert changed.with_(seed=0) == experiment
    with pytest.raises(UserError, match="sample: 6 clients a round are more than all 5"):
        experiment.with_(sample=6)


def test_a_config_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('rounds = 3\n[algorithm]\nname = "fedavg"\n')
    held = {"rounds": 3, "algorithm": {"name": "fedavg"}}
    assert read_toml(tmp_path / "a.toml") == held
    windows = (tmp_path / "a.toml").read_text().replace("\n", "\r\n").encode("utf-8-sig")
    (tmp_path / "b.toml").write_bytes(windows)
    assert read_toml(tmp_path / "b.toml") == held


def test_unreadable_config_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    (tmp_path / "latin.toml").write_bytes(b'dataset = "\xe9"')
    for name, message in (
        ("none.toml", "there is no config file"),
        ("bad.toml", "not valid TOML"),
        ("latin.toml", "cannot be read"),
        (".", "cannot be read"),
    ):
        with pytest.raises(UserError, match=message) as error:
            read_toml(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "key", "nearest"),
    [
        ({"learning_rte": 1}, "learning_rte", None),
        ({"batchsize": 1}, "batchsize", "batch_size"),
        ({"epoch": 1}, "epoch", "epochs"),
        ({"E_W": 1}, "E_W", "algorithm.E_W"),  # the right name outside its table
        ({"phi": "exp"}, "phi", "algorithm.phi"),
        ({"algorithm": {"E_V": 1}}, "algorithm.E_V", "algorithm.E_W"),
        ({"algorithm": {"name": "fedgela", "phi_flor": 1}}, "algorithm.phi_flor", "algorithm.phi_floor"),
    ],
)
def test_unknown_keys_suggest_the_nearest(table: dict[str, Any], key: str, nearest: str | None) -> None:
    hint = f" (did you mean '{nearest}'?)" if nearest else ""
    assert refused(table) == f"config: there is no key {key!r}{hint}"


def test_a_key_in_the_wrong_case_suggests_the_right_one() -> None:
    assert "did you mean 'algorithm.E_W'" in refused({"algorithm": {"e_w": 1.0}})


def test_a_method_has_only_its_own_keys() -> None:
    assert "there is no key 'algorithm.E_W'" in refused({"algorithm": {"name": "fedavg", "E_W": 1.0}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", "50"), ("rounds", 5.0), ("rounds", True), ("rounds", [1]),
        ("lr", "0.1"), ("lr", True), ("dataset", 3), ("dataset", ""), ("partition", 0.1),
        ("optimizer", "rmsprop"), ("schedule", "linear"), ("partition", "dirichlet"),
        ("model", "resnet19"), ("device", "gpu"), ("algorithm", 3), ("algorithm", ["fedavg"]),
        ("algorithm", "fedavgg"), ("data_dir", 1), ("seed", 1.5), ("aggregation", "krum"),
        ("aggregation", "krum:0"), ("aggregation", "krum:1.5"), ("aggregation", "median:1"),
        ("aggregation", "trimmed"), ("aggregation", "trimmed:0"), ("aggregation", "trimmed:0.5"),
        ("aggregation", "trimmed:nan"), ("aggregation", "trimmed:snan"), ("aggregation", "trimmed:x"),
        ("aggregation", ""), ("aggregation", "mean:1"), ("aggregation", 0.2),
    ],
)  # fmt: skip
def test_wrong_types_and_names_are_errors_that_name_the_key(key: str, value: object) -> None:
    assert refused({key: value}).startswith(f"config: {key}: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 0), ("rounds", -1), ("rounds", 10**10), ("epochs", 0), ("batch_size", 0), ("clients", 0),
        ("sample", 0), ("lr", 0), ("lr", -0.1), ("lr", math.inf), ("lr", math.nan), ("lr", 10**400),
        ("momentum", 1), ("momentum", -0.1), ("weight_decay", -1e-4), ("weight_decay", math.inf),
        ("clip_norm", -1), ("clip_norm", math.nan), ("server_lr", 0), ("server_momentum", 1),
        ("server_average", 1), ("server_average", -0.5),
        ("validation", 1), ("validation", -0.1), ("seed", -1), ("seed", 2**63), ("partition_seed", -1),
        ("eval_every", 0), ("finetune_epochs", -1), ("checkpoint_every", 0), ("projection", 0),
        ("threads", 0), ("min_samples", -1),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_errors_that_name_the_key(key: str, value: float) -> None:
    assert refused({key: value}).startswith(f"config: {key}: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("E_W", 0), ("E_W", -1.0), ("E_W", math.inf), ("E_W", math.nan), ("E_W", "1"), ("E_W", True),
        ("E_W", 10**400), ("logit_scale", 0), ("logit_scale", -1), ("phi", 1), ("phi_floor", -0.1),
        ("feature_norm", "l1"), ("softmax", "some"), ("etf", 1), ("adapt", "yes"),
        ("personal_prediction", "none"),
    ],
)  # fmt: skip
def test_bad_hyper_parameters_are_errors_that_name_the_key(key: str, value: object) -> None:
    assert refused({"algorithm": {"name": "fedgela", key: value}}).startswith(f"config: algorithm.{key}: ")


def test_a_bad_phi_is_an_error_of_the_algorithm() -> None:
    assert "phi is 'power:p'" in refused({"algorithm": {"phi": "power"}})


def test_an_unknown_method_suggests_the_nearest_and_lists_all() -> None:
    text = refused({"algorithm": {"name": "fedgella"}})
    assert "no method 'fedgella' (did you mean 'fedgela'?)" in text
    assert all(name in text for name in ALGORITHMS)


def test_sample_of_more_than_all_clients_is_an_error() -> None:
    assert refused({"clients": 5, "sample": 6}) == "config: sample: 6 clients a round are more than all 5"
    assert parse_experiment({"clients": 5, "sample": 5}).sample == 5


def test_many_errors_are_two_lines_and_a_count() -> None:
    text = refused({"lr": -1, "rounds": 0, "epochs": "x", "batchsize": 3, "momentum": 2})
    assert len(text.splitlines()) == 2
    assert text.endswith(" (and 3 more)")


def test_a_long_value_is_cut_short_in_its_error() -> None:
    assert len(refused({"rounds": "x" * 10_000})) < 200


def test_errors_name_the_file_they_are_in() -> None:
    with pytest.raises(UserError, match=r"^my\.toml: there is no key"):
        parse_experiment({"nothing": 1}, where="my.toml")


# -- E_W and its alias ---------------------------------------------------------------------------------


def test_logit_scale_is_the_square_root_of_E_W() -> None:
    by_scale = parse_experiment({"algorithm": {"logit_scale": 3.0}})
    assert by_scale == parse_experiment({"algorithm": {"E_W": 9.0}})
    assert by_scale.algorithm.E_W == 9.0


def test_E_W_and_logit_scale_together_are_an_error() -> None:
    assert "give E_W or logit_scale" in refused({"algorithm": {"E_W": 4.0, "logit_scale": 2.0}})


@pytest.mark.parametrize("key", ["E_W", "logit_scale"])
@pytest.mark.parametrize("method", [{"name": "fedgela", "etf": False}, {"name": "fedla"}])
def test_E_W_without_an_etf_is_an_error(key: str, method: dict[str, Any]) -> None:
    assert "need etf = true" in refused({"algorithm": {**method, key: 2.0}})


def test_a_logit_scale_whose_square_is_too_large_is_an_error() -> None:
    refused({"algorithm": {"logit_scale": 1e200}})


def test_a_logit_scale_whose_square_is_zero_is_an_error() -> None:
    refused({"algorithm": {"logit_scale": 1e-200}})


# -- --set ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("x=3", 3), ("x=3.0", 3.0), ("x=1e-4", 1e-4), ("x=true", True), ("x=[1, 2]", [1, 2]),
        ('x="3"', "3"), ("x=fedgela", "fedgela"), ("x=dirichlet:0.1", "dirichlet:0.1"),
        ("x = 3", 3), ("x= two words ", "two words"), ("x=a=b", "a=b"), ("x=", ""),
        ("x=/data/cifar10.npz", "/data/cifar10.npz"), ("x={a = 1}", {"a": 1}),
    ],
)  # fmt: skip
def test_set_takes_a_toml_value_or_else_a_string(assignment: str, value: object) -> None:
    table: dict[str, Any] = {"x": "before"}
    set_key(table, assignment)
    assert table == {"x": value}
    assert type(table["x"]) is type(value)


def test_set_reaches_into_tables() -> None:
    table: dict[str, Any] = {"algorithm": {"name": "fedgela", "E_W": 1.0}}
    set_key(table, "algorithm.E_W=25")
    set_key(table, "new.inner.key=1")
    assert table == {"algorithm": {"name": "fedgela", "E_W": 25}, "new": {"inner": {"key": 1}}}


def test_set_leaves_the_tables_it_was_given_alone() -> None:
    shared = {"name": "fedgela"}
    table: dict[str, Any] = {"algorithm": shared}
    set_key(table, "algorithm.E_W=25")
    assert shared == {"name": "fedgela"}


def test_set_turns_a_methods_name_into_its_table() -> None:
    table: dict[str, Any] = {"algorithm": "fedge"}
    set_key(table, "algorithm.E_W=25")
    assert table == {"algorithm": {"name": "fedge", "E_W": 25}}
    set_key(table, "algorithm=fedavg")
    assert table == {"algorithm": "fedavg"}


@pytest.mark.parametrize("assignment", ["lr", "", "=3", " =3"])
def test_set_without_a_key_or_a_value_is_an_error(assignment: str) -> None:
    with pytest.raises(UserError, match="write key=value"):
        set_key({}, assignment)


def test_set_into_a_value_is_an_error() -> None:
    with pytest.raises(UserError, match="'lr' is a value, not a table"):
        set_key({"lr": 0.1}, "lr.x=3")


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000], ids=["digits", "hex", "depth"])
def test_absurd_values_end_in_an_error_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(f"rounds = {text}")
    with pytest.raises(UserError):
        parse_experiment(read_toml(tmp_path / "a.toml"))


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000], ids=["digits", "depth"])
def test_what_toml_cannot_read_is_set_as_a_string(text: str) -> None:
    table: dict[str, Any] = {}
    set_key(table, f"rounds={text}")
    assert table == {"rounds": text}


# -- hints ---------------------------------------------------------------------------------------------


def test_known_keys_are_those_of_the_experiment_and_of_the_method() -> None:
    assert {"lr", "algorithm.name", "algorithm.E_W"} <= set(known_keys("fedgela"))
    assert "algorithm.E_W" not in known_keys("fedavg")


def test_no_hint_where_nothing_is_near() -> None:
    assert did_you_mean("xyzzy", known_keys()) == ""


# -- fuzz ----------------------------------------------------------------------------------------------


def random_value(rng: random.Random, depth: int = 0) -> Any:
    scalars = [
        None, True, False, 0, 1, -1, 3, 10**18, 10**400, -(10**30), 0.0, -0.0, 0.5, 1e-4, 1e300, -2.5,
        math.nan, math.inf, -math.inf, "", "x", "auto", "cpu", "cuda:1", "fedavg", "fedgela", "FedGELA",
        "power:1", "iid", "dirichlet:0.1", "dirichlet:-1", "classes:2", "two\nlines", "é∞\x00", "'\"",
        "x" * 5000, datetime.date(2024, 1, 2), datetime.time(1, 2), datetime.datetime(2024, 1, 2, 3, 4),
    ]  # fmt: skip
    kind = rng.random()
    if kind < 0.12 and depth < 3:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind < 0.25 and depth < 3:
        return random_table(rng, depth + 1)
    return rng.choice(scalars)


def random_table(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = [name.removeprefix("algorithm.") for name in known_keys()]
    table = {}
    for _ in range(rng.randrange(5)):
        name = rng.choice([*names, "algorithm", "name"])
        if rng.random() < 0.2:  # a typo: a letter lost, doubled, or something else altogether
            i = rng.randrange(len(name))
            name = rng.choice(
                [name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:], "", "a.b", "new\nline"]
            )
        # a method's own tables are where the most can go wrong
        table[name] = (
            random_table(rng, depth + 1) if name == "algorithm" and depth < 2 else random_value(rng, depth)
        )
    return table


def test_any_table_is_an_experiment_or_a_short_error() -> None:
    rng = random.Random(0)
    parsed = 0
    for _ in range(3000):
        table = random_table(rng)
        try:
            experiment = parse_experiment(table)
        except UserError as error:
            assert str(error).strip()
            assert len(str(error).splitlines()) <= 2, table
        else:
            parsed += 1
            assert parse_experiment(tomllib.loads(experiment.to_toml())) == experiment
    assert 300 < parsed < 2700  # both ends are reached often
