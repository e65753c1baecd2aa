"""Whether the Hugging Face hub answers: one quick request, since its own libraries retry for a long time."""

import os
import ssl
import urllib.error
import urllib.request
from functools import lru_cache

WITHIN = 10.0  # seconds


def why_unreachable() -> str | None:
    """Why the hub cannot be asked, in a line; None where it answers."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    return _asked(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))


@lru_cache
def _asked(endpoint: str) -> str | None:
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        urllib.request.urlopen(request, timeout=WITHIN).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLError):  # the hub's libraries may trust other certificates
            return f"{endpoint} cannot be reached: {reason}"
    return None
