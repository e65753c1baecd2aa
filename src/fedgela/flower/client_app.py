"""The ClientApp on a site. Flower starts a process for every message: it only hands the message over to the
site's own process (site.py), which has torch and the data loaded, so that nothing heavy is imported here."""

import socket

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedgela.flower.carrier import content_of, payload_of
from fedgela.flower.pipe import receive, send

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def query(message: Message, context: Context) -> Message:
    return _handed_over(message, context)


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    return _handed_over(message, context)


@app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
def evaluate(message: Message, context: Context) -> Message:
    return _handed_over(message, context)


def _handed_over(message: Message, context: Context) -> Message:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(str(context.node_config["socket"]))
        send(there, payload_of(message.content))
        reply = receive(there)
    return Message(content_of(reply), reply_to=message)
