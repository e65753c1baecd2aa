"""What Flower carries: one row of bytes a message. Neither torch nor numpy is imported here, since Flower
starts a process for every message on a site."""

from flwr.app import Array, ArrayRecord, RecordDict

_NAME = "payload"


def content_of(payload: bytes) -> RecordDict:
    """As an array, which Flower sends in pieces where it is large."""
    array = Array(dtype="uint8", shape=(len(payload),), stype="bytes", data=payload)
    return RecordDict({_NAME: ArrayRecord({_NAME: array})})


def payload_of(content: RecordDict) -> bytes:
    """ValueError where the content is none of ours."""
    try:
        data: bytes = content[_NAME][_NAME].data
    except (KeyError, AttributeError, TypeError):
        raise ValueError("the message has no payload") from None
    return data
