"""What a site keeps between rounds: its personal model, on its own disk, by run and round."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fedgela.files import TEMPORARY, read_tensors, write_tensors
from fedgela.models import State

# the server can go back to one of the two checkpoints on its disk, which the last round's may not have
# reached yet, while the site is already a round ahead
KEPT_ROUNDS = 4


@dataclass
class SiteStore:
    """One run's models of one site. The server says in which round its own account has the site's last
    visit: after the server went back to a checkpoint, the site goes back with it."""

    folder: Path
    round: int = 0  # the one that goes on
    visited: int = 0  # of the last visit, 0 before the first
    lost: bool = False  # a model should be here, but is not or is damaged: the site starts anew

    def get(self, client: int, entries: Collection[str] | None = None) -> State | None:
        if self.visited == 0:
            return None
        for path in self.folder.glob(f"round-{self.visited:06d}.*.safetensors"):
            try:
                return read_tensors(path)[0]
            except ValueError:  # what only cannot be read for now is not lost
                path.rename(path.with_name(path.name + ".damaged"))
        self.lost = True
        return None

    def put(self, client: int, model: State) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = write_tensors(self.folder, f"round-{self.round:06d}", model)
        self._sweep(name)

    def _sweep(self, newest: str) -> None:
        for leftover in self.folder.glob(f"*{TEMPORARY}"):
            leftover.unlink()
        files = ((path, re.match(r"round-(\d+)\.", path.name)) for path in self.folder.glob("*.safetensors"))
        held = {path: int(found[1]) for path, found in files if found}
        # rounds since the last visit that counts were answered too late, or with an update that was refused:
        # the server never goes back to one of them
        past = {round for round in held.values() if round <= self.visited or round == self.round}
        kept = sorted(past)[-KEPT_ROUNDS:]
        for path, round in held.items():
            # rounds beyond this one are of a past that the server has taken back
            if round not in kept or (round == self.round and path.name != newest):
                path.unlink()
