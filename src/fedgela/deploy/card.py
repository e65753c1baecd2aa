"""What the users of a trained model must know of it: whose it is, what it takes, and its classes."""

import json
from dataclasses import asdict, dataclass

import fedgela
from fedgela.errors import UserError
from fedgela.inputs import InputSpec

CARD = "fedgela.json"  # the card's name in an exported file


@dataclass(frozen=True)
class Card:
    """What an exported file says of itself."""

    method: str
    client: int | None  # whose personal model it is, by number; None: the global one
    round: int
    input: InputSpec
    classes: tuple[str, ...]
    data: str  # the fingerprint of what it was trained on
    client_name: str = ""  # or id, where the data has one
    features: tuple[str, ...] = ()  # the columns of tables, in the order that it takes them
    version: str = fedgela.__version__

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Card":
        """A UserError where the text is no card; that of a file which holds none is empty."""
        if not text:
            raise UserError(f"has no {CARD}: it is not of `fedgela export`")
        try:
            values = json.loads(text)
            spec = InputSpec.of(values["input"])
            rows = {key: tuple(values.get(key, ())) for key in ("classes", "features")}
            return cls(**{**values, **rows, "input": spec})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"its {CARD} cannot be read ({type(error).__name__}: {error})") from None

    def __str__(self) -> str:
        whose = "the global model" if self.client is None else f"the personal model of client {self.client}"
        whose += f" ({self.client_name})" if self.client_name else ""
        return f"{whose} of {self.method}, round {self.round}: {self.input}, {len(self.classes)} classes"
