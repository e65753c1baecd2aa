"""A run on the sites of a federation: what its folder holds that a local run's does not (flower/terms.py)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedgela.data import Federation
from fedgela.evaluation import Record
from fedgela.flower.server_data import federation_of_sites, server_data
from fedgela.flower.terms import AGREED, TERMS, Agreed, Terms

Joined = dict[str, Record]  # what each site said of its data when it joined


@dataclass(frozen=True)
class Sites:
    terms: Terms
    test_data: str | None  # the server's own
    agreed: Agreed | None  # None: the run has not begun

    @property
    def names(self) -> tuple[str, ...]:
        return self.terms.sites

    @property
    def GA_on(self) -> str:
        if self.test_data is not None:
            return "the server's own test samples"
        return "the sites' own test samples, each where it lies"


def read_sites(path: Path, note: Callable[[str], None]) -> Sites | None:
    """What is known of the sites of a run; None for a local run, and for one whose files are damaged, which
    is noted."""
    try:
        asked = json.loads((path / TERMS).read_text())
        agreed = Agreed.read(path / AGREED) if (path / AGREED).exists() else None
        return Sites(Terms.of(asked["terms"]), asked["test_data"], agreed)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        note(f"{path}: {TERMS} or {AGREED} cannot be read ({type(error).__name__}): its sites are not shown")
        return None


def joined(records: Sequence[Record]) -> Joined:
    """What each site said of its data when it joined. Sites join a resumed run again: the last one counts."""
    found: Joined = {}
    for record in records:
        found |= record.get("joined", {})
    return found


def federation_at_the_server(
    sites: Sites, records: Sequence[Record], image_size: int | None
) -> Federation | None:
    """The server's test set, if it is still there, and the sites' numbers of samples; None before a run has
    begun."""
    agreed = sites.agreed
    if agreed is None:
        return None
    data = server_data(agreed.sample, agreed.classes, agreed.normalisation, sites.test_data, image_size)
    told = joined(records)
    samples, tested = (
        torch.tensor([int(told.get(name, {}).get(key, 0)) for name in sites.names], dtype=torch.int64)
        for key in ("samples", "tested")
    )
    return federation_of_sites(data, samples, tested)
