"""Bytes as the server really gets them, and rounds to FedAvg's best GA as the paper counts them."""

from pathlib import Path

import pytest
import torch

from fedgela.algorithms import ALGORITHMS
from fedgela.measures import reaching_fedavg, state_bytes, total_traffic, traffic
from fedgela.measures.communication import N_K_BYTES, Traffic
from helpers import play, serve, tiny, watch_updates


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "centralised"])
def test_up_is_what_clients_send_and_down_what_the_server_holds(name: str, npz: Path) -> None:
    server = serve(tiny(npz, algorithm={"name": name}, rounds=1))
    sent = watch_updates(server)
    progress, records = play(server)
    d = server.experiment.projection
    assert d is not None
    one = traffic(server.algorithm, server.net.state_dict(), server.federation.train_counts[0], d)

    seen = state_bytes(sent[0].model) + state_bytes(sent[0].extra)
    assert one.up == (seen + N_K_BYTES if seen else 0)
    assert one.down == state_bytes(sent[0].model) + state_bytes(progress.server.extra)
    assert total_traffic(one, records, 4) == (4 * one.up, 4 * one.down)


def test_what_a_method_says_of_itself_is_counted() -> None:
    model = {"backbone.w": torch.zeros(10), "head.classifier.weight": torch.zeros(3, 4), "n": torch.tensor(1)}
    counts = torch.tensor([5, 0, 2])
    fixed = traffic(ALGORITHMS["fedgela"](), model, counts, 4)
    assert fixed == Traffic(up=40 + N_K_BYTES, down=40)  # neither the ETF nor the counter travels
    shared = traffic(ALGORITHMS["fedgela"](phi="paper-exp"), model, counts, 4)
    assert shared.once == 3 * 4 and shared.down == 40 + 3 * 4
    assert traffic(ALGORITHMS["local"](), model, counts, 4) == Traffic(0, 0)
    assert traffic(ALGORITHMS["centralised"](), model, counts, 4) == Traffic(0, 0)
    own_norm = traffic(ALGORITHMS["fedavg"](), model, counts, 4, stays={"backbone.w"})
    assert own_norm.up == 48 + N_K_BYTES
    assert total_traffic(shared, [{"clients": [0, 1]}, {"clients": [2]}], 9)[0] == 3 * shared.up + 9 * 12


def records(*GA: float | None) -> list[dict[str, object]]:
    return [{"round": i + 1, "GA": value} for i, value in enumerate(GA)]


def test_rounds_to_fedavgs_best_and_the_speed_up() -> None:
    fedavg = records(20.0, 60.0, 70.0, 60.0, 70.0)
    for method, found in (
        (fedavg, (3, 1.0)),  # the first of equals
        (records(None, 80.0, 75.0), (2, 1.5)),
        (records(10.0, 20.0, 30.0, 40.0, 50.0, 70.0), (6, 0.5)),
        (records(10.0, 69.9), (None, None)),
    ):
        assert reaching_fedavg({0: method}, {0: fedavg}) == {0: found}


def test_methods_are_held_against_fedavg_by_seed() -> None:
    fedavg = {1: records(20.0, 50.0, 40.0), 0: records(30.0, 60.0), 2: records(None), 3: records(10.0)}
    method = {0: records(60.0), 1: records(20.0, 30.0), 2: records(90.0), 4: records(90.0)}
    # seed 2 of FedAvg was never measured, and seeds 3 and 4 are one method's only
    assert list(reaching_fedavg(method, fedavg).items()) == [(0, (1, 2.0)), (1, (None, None))]
    assert reaching_fedavg(fedavg, fedavg)[1] == (2, 1.0)
