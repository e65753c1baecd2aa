"""Rows of bytes through a socket, each preceded by its length."""

import socket


def send(there: socket.socket, content: bytes) -> None:
    there.sendall(len(content).to_bytes(8, "little"))
    there.sendall(content)


def receive(there: socket.socket) -> bytes:
    """ConnectionError where the other side ended before it was through."""
    size = int.from_bytes(_exactly(there, 8), "little")
    return bytes(_exactly(there, size))


def _exactly(there: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        got = there.recv_into(view)
        if got == 0:
            raise ConnectionError("the other side has ended")
        view = view[got:]
    return content
