"""Where samples come from (sources), who holds them (partition), and the two together (federation)."""

from fedgela.data.dataset import Dataset
from fedgela.data.federation import Federation, build_federation
from fedgela.data.sources import load_dataset

__all__ = ["Dataset", "Federation", "build_federation", "load_dataset"]
