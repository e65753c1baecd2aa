"""A site's personal model as it can be used there: what it takes beside the weights that the site keeps.

STATE/RUN/personal.safetensors, rewritten after every visit. Neither leaves the site.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from fedgela.errors import UserError, first_line
from fedgela.files import read_tensors, write_atomically
from fedgela.flower.wire import decode, encode
from fedgela.inputs import InputSpec
from fedgela.models import State

PERSONAL = "personal.safetensors"
GROUPS = ("normalisation", "vectors")  # of tensors


@dataclass(frozen=True)
class Personal:
    """Of the last visit."""

    site: int
    round: int
    experiment: str  # as TOML
    classes: tuple[str, ...]
    sample: InputSpec
    features: tuple[str, ...]  # a table's columns
    data: str  # the fingerprint of what it was trained on
    normalisation: State
    vectors: State  # the method's, of this site: FedGELA's Phi_k

    def write(self, folder: Path) -> None:
        groups = {key: getattr(self, key) for key in GROUPS}
        about = {key: value for key, value in asdict(self).items() if key not in GROUPS}
        write_atomically(folder / PERSONAL, encode(groups, about))

    @classmethod
    def read(cls, folder: Path) -> "Personal":
        try:
            groups, about = decode((folder / PERSONAL).read_bytes())
            about["sample"] = InputSpec.of(about["sample"])
            rows = {key: tuple(about[key]) for key in ("classes", "features")}
            return cls(**about | rows | {key: groups.get(key, {}) for key in GROUPS})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / PERSONAL}: cannot be read ({first_line(error)})") from None

    def model(self, folder: Path) -> State:
        for path in folder.glob(f"round-{self.round:06d}.*.safetensors"):
            try:
                return read_tensors(path)[0]
            except (OSError, ValueError) as error:
                raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
        raise UserError(f"{folder}: the model of round {self.round} is not there any more")


def personal_folder(path: Path) -> Path | None:
    """A run's state, of the newest run where `path` is a site's folder; None where it is neither."""
    if (path / PERSONAL).exists():
        return path
    held = sorted(path.glob(f"state/*/{PERSONAL}"), key=lambda file: file.stat().st_mtime)
    return held[-1].parent if held else None
