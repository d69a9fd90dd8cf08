"""Mixtures of experts: which experts see a token (`balance`, `routing`), and how it gets there (`dispatch`).

A layer of experts scores every token, a balance rule chooses experts by the scores, weights are made of the scores of
the chosen, and a dispatch body has each expert compute its tokens. Choosing and computing know nothing of each other
but `Routes`.
"""

from marin_train.moe.layer import MixtureOfExperts, mixture_parameters
from marin_train.moe.metrics import RoutingMetrics, measure_routing
from marin_train.moe.routing import Routes, Routing, Traffic, merge_routing, rebalanced

__all__ = [
    "MixtureOfExperts",
    "Routes",
    "Routing",
    "RoutingMetrics",
    "Traffic",
    "measure_routing",
    "merge_routing",
    "mixture_parameters",
    "rebalanced",
]
