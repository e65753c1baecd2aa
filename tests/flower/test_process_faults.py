"""What sites can do wrong, with real processes: the round goes on with the others, and nothing is lost."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

import fedgela
from fedgela.flower.federated_server import STILL_ASKED
from fedgela.flower.processes import free_port
from flower.real import RealFederation, real_federation, until
from flower.sites import HOLDINGS
from flower.tampering import TOLD

pytestmark = pytest.mark.federation

FAULTY = 2  # the last of three sites; the others are sound
NAME = f"site-{FAULTY}"
DEADLINE = 30  # of a round, in seconds: many times what one takes


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    """Its server and the two sound sites stay for all tests here."""
    with real_federation(tmp_path_factory.mktemp("federation"), HOLDINGS) as made:
        made.server()
        for name in made.names[:FAULTY]:
            made.site(name)
        yield made


@pytest.fixture(autouse=True)
def nothing_else_stays(federation: RealFederation) -> Iterator[None]:
    before = len(federation.commands)
    yield
    federation.close(but=before)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan").mkdir()
    return tmp_path / "plan"


def terms(sites: int, wait: int = 60) -> tuple[object, ...]:
    return ("--min-sites", sites, "--wait-seconds", wait, "--round-seconds", DEADLINE)


def test_broken_answers_are_named_and_left_out(federation: RealFederation, plan: Path) -> None:
    """A fault a round; between them and after them the site takes part as if nothing had been."""
    told = TOLD | {"raise": "OSError (the site's own log tells more)"}
    faults = {2 + i + i // 3: how for i, how in enumerate(told)}  # every fourth round is sound
    for round, how in faults.items():
        (plan / str(round)).write_text(how)
    site = federation.site(NAME, plan=plan)
    experiment = federation.experiment(algorithm="fedgela", rounds=max(faults) + 1, lr=0.005)
    run = federation.run("broken", experiment, *terms(sites=3))
    run.command.ended(0, 300)
    for record in run.records:
        how = faults.get(record["round"])
        assert record["clients"] == [0, 1, 2]
        assert record.get("faults", {}).keys() == ({NAME} if how else set())
        assert how is None or told[how] in record["faults"][NAME]
    run.assert_equals_a_local_run(absent={round: [FAULTY] for round in faults})
    assert "patient-7" in site.said and "patient" not in federation.log


def test_a_site_that_hangs_is_not_waited_for_again_until_it_answers(
    federation: RealFederation, plan: Path
) -> None:
    (plan / "2").write_text("hang")
    federation.site(NAME, plan=plan)
    run = federation.run("hanging", federation.experiment(algorithm="fedrep", rounds=12), *terms(sites=2))
    run.wait_for_round(4)
    late, *others = run.records[1:4]
    assert late["faults"] == {NAME: f"no answer within {DEADLINE} s"} and late["seconds"] >= DEADLINE
    for record in others:
        assert record["faults"] == {NAME: STILL_ASKED} and record["clients"] == [0, 1]
        assert record["seconds"] < DEADLINE
    (plan / "go on").touch()  # and the answer is too late
    run.command.ended(0, 120)
    without = [record["round"] for record in run.records if "faults" in record]
    assert without == list(range(2, without[-1] + 1)) and without[-1] < 12
    run.assert_equals_a_local_run(absent={round: [FAULTY] for round in without})


def test_a_site_that_dies_or_hangs_is_restarted_and_has_lost_nothing(
    federation: RealFederation, plan: Path
) -> None:
    """What it had learnt is on its disk; a ServerApp that is killed in between goes on as well."""
    site = federation.site(NAME, plan=plan)
    experiment = federation.experiment(algorithm="fedrep", rounds=10, lr=0.005)
    # a round begins once all three are there, and goes on without the one that is lost in it
    run = federation.run("coming-and-going", experiment, *terms(sites=3, wait=150))

    for how, code in (("die", 1), ("hang", -signal.SIGKILL)):
        sound = len(run.records)
        run.wait_for_round(sound + 1)
        (plan / "next").write_text(how)
        until(lambda: not (plan / "next").exists(), 60, lambda: run.command.said)
        if how == "hang":
            site.kill()
        site.ended(code)
        site = federation.site(NAME, plan=plan)
        run.wait_for_round(sound + 3)
    faults = [record["faults"] for record in run.records if "faults" in record]
    assert len(faults) == 2 and all(fault.keys() == {NAME} for fault in faults)
    # its SuperNode signs off, or where it has no time to, the deadline tells
    assert all("Flower's error" in f[NAME] or "no answer within" in f[NAME] for f in faults)
    os.kill(int((run.path / "serverapp.pid").read_text()), signal.SIGKILL)
    assert "--resume" in run.command.ended(2)
    federation.resume(run)
    run.command.ended(0, 180)
    away = [record["round"] for record in run.records if "faults" in record]
    assert len(away) == 2
    run.assert_equals_a_local_run(absent={round: [FAULTY] for round in away})


def test_with_secure_aggregation_the_sum_is_opened_without_a_site_that_dies_or_hangs(
    federation: RealFederation, plan: Path
) -> None:
    """A masked update that comes when the others' sum has been opened is not taken."""
    (plan / "2").write_text("die")
    site = federation.site(NAME, plan=plan)
    run = federation.run(
        "masked", federation.experiment(rounds=8, lr=0.005), *terms(sites=2), "--secure-aggregation"
    )
    site.ended(1)
    federation.site(NAME, plan=plan)
    run.wait_for(lambda records: len(records) > 2 and "faults" not in records[-1], "return", 180)
    (plan / "next").write_text("hang")
    until(lambda: not (plan / "next").exists(), 60, lambda: run.command.said)
    run.wait_for(lambda records: "no answer" in str(records[-1].get("faults")), "deadline", 120)
    (plan / "go on").touch()
    run.command.ended(0, 240)
    absent = {r["round"]: [FAULTY] for r in run.records if FAULTY not in r["clients"] or "faults" in r}
    assert 1 not in absent and len(absent) >= 2
    assert not any("lost" in record for record in run.records)
    run.assert_equals_a_local_run(absent=absent)


def test_a_site_that_comes_late_takes_part_from_then_on(federation: RealFederation) -> None:
    run = federation.run("late", federation.experiment(rounds=8), *terms(sites=2, wait=2))
    run.wait_for_round(1)
    federation.site(NAME)
    run.command.ended(0, 240)
    assert f"{NAME}: takes part from now on" in run.command.said
    there = [FAULTY in record["clients"] for record in run.records]
    assert not there[0] and there[-1] and there == sorted(there)
    assert not any("faults" in record for record in run.records)


def test_after_a_power_cut_the_site_is_let_in_once_its_heartbeats_are_over(
    federation: RealFederation, plan: Path
) -> None:
    site = federation.site(NAME)
    run = federation.run(
        "power-cut", federation.experiment(algorithm="fedrep", rounds=4), *terms(sites=3, wait=150)
    )
    run.wait_for_round(1)
    site.cut_power()
    federation.site(NAME).wait_for("not let in yet")
    run.command.ended(0, 240)
    without = [record["round"] for record in run.records if "faults" in record]
    assert len(without) == 1  # no round begins before all three are there
    assert run.records[without[0] - 1]["faults"] == {NAME: f"no answer within {DEADLINE} s"}
    run.assert_equals_a_local_run(absent={without[0]: [FAULTY]})


def test_mistakes_of_administrators_end_in_one_line(federation: RealFederation, plan: Path) -> None:
    expired = federation.make("expired", free_port(), days=0)
    (plan / "version").write_text("0.0.1")
    old = federation.site(NAME, plan=plan)
    early = federation.site("site-0", federation.copied("early", server=f"127.0.0.1:{free_port()}"))
    both_versions = f"{NAME}: the server has fedgela {fedgela.__version__}, this site 0.0.1: install the same"
    federation.assert_complaints(
        {
            "site-0: another process is working in this folder": federation.site("site-0"),
            "ca.crt: this certificate expired on": federation.site("site-0", expired.path / "site-0"),
            "server.crt: this certificate expired on": federation.command("server", expired.path),
            f"port {federation.made.port} of 127.0.0.1 cannot be used": federation.command(
                "server", federation.made.path
            ),
            both_versions: federation.run("old", federation.experiment(rounds=1), *terms(sites=3)).command,
        }
    )
    assert "install the same on both" in old.said
    early.wait_for("no server answers (Connection refused); trying until one does")
    assert early.running  # a site may be started before its server
