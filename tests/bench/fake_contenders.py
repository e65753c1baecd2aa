"""A contender for tests, in a module of its own: contenders are found by import path."""

from fedgela.bench.contender import Contender


class Broken(Contender):
    """A peer that cannot play."""

    def round(self) -> None:
        raise RuntimeError("first line\nthe wheels came off")
