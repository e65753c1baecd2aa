"""A site that misbehaves as it is told: `python faulty_site.py PLAN federation site ...`

PLAN is a folder. A file in it named by a round, or `next`, says what happens when the site is to train then;
it is followed once. `version` says which fedgela the site takes itself for. The process, its SuperNode and
the network are real; only what is done there is changed.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import fedgela
from fedgela.cli import main
from fedgela.flower.site import Site
from fedgela.flower.wire import decode
from flower.tampering import TOLD, tampered

plan = Path(sys.argv.pop(1))
todo = ""  # with the message at hand: a site answers one at a time
true_answer, true_train = Site.answer, Site._train


def planned(about: dict[str, Any]) -> str:
    for path in (plan / str(about.get("round")), plan / "next"):
        if about["task"] == "train" and path.exists():
            text = path.read_text()
            path.unlink()
            return text
    return ""


def answer(self: Site, payload: bytes) -> bytes:
    global todo
    todo = planned(decode(payload)[1])
    said = true_answer(self, payload)
    return tampered(said, todo) if todo in TOLD else said


def train(self: Site, *asked: Any) -> Any:
    if todo == "raise":
        raise OSError("/secret/patient-7.png cannot be read")
    if todo == "die":
        os._exit(1)
    while todo == "hang" and not (plan / "go on").exists():
        time.sleep(0.1)
    return true_train(self, *asked)


if (plan / "version").exists():
    fedgela.__version__ = (plan / "version").read_text()
Site.answer, Site._train = answer, train  # type: ignore[method-assign]
main()
