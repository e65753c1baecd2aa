"""The same algorithms on Flower: in its simulation, and on sites whose data stays where it is.

A client is a `Server` (server.py) that holds one client's data: it trains, scores and keeps by the same code
as a local run. What goes over the wire is a `Visit`.
"""

import importlib.util
import os

from fedgela.errors import UserError

FEDERATION = "federation.toml"  # in a federation's folder, and in no other

# by default, of a run's terms and of the command's options
ROUND_SECONDS = 600.0  # after which a round goes on without a site
WAIT_SECONDS = 60.0  # for enough sites to be there

# nothing is reported anywhere, and nothing is installed behind the user's back
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do by itself, and warns of until then
}


def require_flower(simulation: bool = False) -> None:
    """To be called before flwr is imported."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    missing = [m for m in ("flwr", "ray") if importlib.util.find_spec(m) is None]
    if "flwr" in missing or (simulation and missing):
        raise UserError(
            f"this needs Flower, but {' and '.join(missing)} cannot be imported: "
            "pip install 'fedgela[flower]'"
        )
