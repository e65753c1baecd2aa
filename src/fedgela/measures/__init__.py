"""What is measured of models, features and messages: pure functions, on any device."""

from fedgela.measures.communication import Traffic, reaching_fedavg, state_bytes, total_traffic, traffic
from fedgela.measures.drift import adaptation_cost, distance, drift, state_norm
from fedgela.measures.neural_collapse import (
    Collapse,
    class_mean_angles,
    etf_angle,
    neural_collapse,
)

__all__ = [
    "Collapse",
    "Traffic",
    "adaptation_cost",
    "class_mean_angles",
    "distance",
    "drift",
    "etf_angle",
    "neural_collapse",
    "reaching_fedavg",
    "state_bytes",
    "state_norm",
    "total_traffic",
    "traffic",
]
