"""What a site looks at before it leaves the connection to Flower: whether the federation's own server
answers, and whether their clocks agree. What Flower's SuperNode says where they do not is for its log."""

import http.client
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedgela.errors import UserError
from fedgela.flower.addresses import host_and_port
from fedgela.flower.folder import SiteFolder

RETRY_SECONDS = 5.0
GREETING_SECONDS = 10.0
PATH = "/v1/fleet/"  # of sites: a proxy passes it on
AWAY = (502, 503, 504)  # a proxy's answers for a server that gives none
# by the server's clock: a site signs the time with every call, and Flower refuses it beyond these
AHEAD_SECONDS, BEHIND_SECONDS = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE


class NotYet(Exception):
    """What has to change before the site can come in."""


def wait_for_server(folder: SiteFolder, log: Callable[[str], None]) -> None:
    """Until the federation's own server answers, over TLS, and lets in who has this machine's time."""
    told = ""
    while True:
        try:
            return _greet(folder)
        except NotYet as error:
            if str(error) != told:
                told = str(error)
                log(f"{folder.name}: {told}")
            time.sleep(RETRY_SECONDS)


def _greet(folder: SiteFolder) -> None:
    host, port = host_and_port(folder.server)
    trusted = ssl.create_default_context(cafile=str(folder.ca))
    connection = http.client.HTTPSConnection(host, port, timeout=GREETING_SECONDS, context=trusted)
    asked = time.time()
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{folder.server} is not this federation's server: {folder.ca} does not vouch for its "
            f"certificate ({error.verify_message}); is the folder of another federation, was the "
            "federation made anew, or is this machine's clock wrong?"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        # a tunnel or proxy whose server is away closes the connection; all else is a plaintext server
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            raise UserError(
                f"{folder.server} does not speak TLS, so it is no federation's server; nothing was sent"
            ) from None
        raise NotYet(_no_answer(getattr(error, "strerror", None) or str(error))) from None
    finally:
        connection.close()
    if answer.status in AWAY:
        raise NotYet(_no_answer(f"its proxy says {answer.status} {answer.reason}"))
    _check_clock(answer.getheader("Date"), asked, time.time())


def _no_answer(why: str) -> str:
    return f"no server answers ({why}); trying until one does"


def _check_clock(date: str | None, asked: float, answered: float) -> None:
    """NotYet where the server is sure to refuse this machine's time; it tells its own in whole seconds."""
    try:
        server = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return  # a proxy that tells no time
    ahead, behind = asked - (server + 1), server - answered
    for seconds, most, where in ((ahead, AHEAD_SECONDS, "ahead of"), (behind, BEHIND_SECONDS, "behind")):
        if seconds > most:
            raise NotYet(
                f"this machine's clock is {seconds:.0f} s {where} the server's, and more than {most} s are "
                "not let in: set them right; trying until they are"
            )
