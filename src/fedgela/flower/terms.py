"""What a run in a federation has beside its experiment, and the files that it has beside a local run's."""

from dataclasses import dataclass

import fedgela
from fedgela.flower.wire import About, Wire

ASKED = "asked.toml"  # the experiment, before the sites filled it in
TERMS = "federation.json"  # the terms below, which node is which site, the server's own test data
AGREED = "agreed.json"  # what the sites agreed on when the run began
NOTES, ERROR, ALIVE, STARTED = "notes.log", "error.txt", "serverapp.pid", "started.json"


@dataclass(frozen=True)
class Terms:
    federation: str  # its id
    run: str  # the key by which sites keep their models
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    round_seconds: float = 600.0  # after which a round goes on without a site
    wait_seconds: float = 300.0  # for enough sites to be there
    min_sites: int = 1
    wire: Wire = "fp32"
    dp_noise: float = 0.0  # 0: no differential privacy
    dp_clip: float = 1.0
    dp_delta: float = 1e-5

    def question(self, task: str, site: int, experiment: str, **more: object) -> About:
        return {
            "task": task,
            "federation": self.federation,
            "version": fedgela.__version__,
            "run": self.run,
            "site": site,
            "sites": len(self.sites),
            "classes": list(self.classes),
            "experiment": experiment,
            **more,
        }
