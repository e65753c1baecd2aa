"""Questions to sites and their answers, with a deadline; whoever does not answer is named, and is not asked
again before it has."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedgela.flower.carrier import content_of, payload_of

POLL_SECONDS = 0.2
KIND = {"train": MessageType.TRAIN, "score": MessageType.EVALUATE, "finetune": MessageType.EVALUATE}


@dataclass
class Replies:
    payloads: dict[int, bytes] = field(default_factory=dict)  # by site
    faults: dict[int, str] = field(default_factory=dict)


class Exchange:
    """Sites are numbers; `nodes` tells which key's node is which site, as the server registered them."""

    def __init__(self, grid: Grid, nodes: Mapping[int, int]) -> None:
        self.grid = grid
        self.node_of = {site: node for node, site in nodes.items()}
        self.site_of = dict(nodes)
        self.hanging: dict[int, str] = {}  # the message that a site has not answered yet
        self.sent = self.received = 0  # bytes of payloads

    def online(self) -> list[int]:
        """Sites that are connected and owe no answer."""
        self._forgive()
        there = {self.site_of[node] for node in self.grid.get_node_ids() if node in self.site_of}
        return sorted(there - self.hanging.keys())

    def _forgive(self) -> None:
        """A site whose late answer has come can be asked again; the answer itself is of a past round."""
        answered = {id for id, _ in self._answers(self.hanging.values())}
        self.hanging = {site: id for site, id in self.hanging.items() if id not in answered}

    def wait_for(
        self, sites: int, seconds: float, note: Callable[[str], None], besides: Collection[int] = ()
    ) -> list[int]:
        """The sites online, once there are so many of them, not counting those `besides`, or the time is
        over."""
        end, told = time.monotonic() + seconds, False
        while (here := len(set(online := self.online()) - set(besides))) < sites and time.monotonic() < end:
            if not told:
                note(f"waiting for sites: {here} of {sites} are here")
                told = True
            time.sleep(1.0)
        return online

    def ask(self, task: str, questions: Mapping[int, bytes], seconds: float, round: int = 0) -> Replies:
        replies = Replies()
        messages = [
            self.grid.create_message(
                content_of(question),
                message_type=KIND.get(task, MessageType.QUERY),
                dst_node_id=self.node_of[site],
                group_id=str(round),
            )
            for site, question in questions.items()
        ]
        ids = list(self.grid.push_messages(messages))
        self.sent += sum(len(question) for question in questions.values())
        waiting = {}
        for id, site in zip(ids, questions, strict=True):
            if id:
                waiting[id] = site
            else:
                replies.faults[site] = "is not registered any more"
        end = time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            self._forgive()  # the loss of its question shows only until a hanging site that ended is back
            for id, reply in self._answers(list(waiting)):
                self._take(waiting.pop(id), reply, replies)
        for id, site in waiting.items():
            replies.faults[site] = f"no answer within {seconds:g} s"
            self.hanging[site] = id
        return replies

    def _answers(self, ids: Iterable[str]) -> Iterator[tuple[str, Message | None]]:
        """The answers that have come to these messages; None for one that Flower cannot read. They are pulled
        one by one: of several, Flower would give none where one is such, and they would be lost."""
        for id in ids:
            try:
                found = list(self.grid.pull_messages([id]))
            except httpx.HTTPError:
                raise  # the server, and no site
            except Exception:  # of any kind: a hostile site makes up what Flower takes apart
                yield id, None
            else:
                yield from ((id, reply) for reply in found[:1])

    def _take(self, site: int, reply: Message | None, replies: Replies) -> None:
        if reply is None:
            replies.faults[site] = "sent what Flower cannot read"
            return
        if reply.has_error():
            replies.faults[site] = _reason(reply.error.code, reply.error.reason)
            return
        try:
            replies.payloads[site] = payload_of(reply.content)
        except ValueError as error:
            replies.faults[site] = str(error)
        else:
            self.received += len(replies.payloads[site])


def _reason(code: int, reason: str | None) -> str:
    text = " ".join((reason or "no reason given").split())
    return f"{text[:200]} (Flower's error {code})"
