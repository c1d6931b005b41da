"""Costs of methods in ProtoFSSL's paper (Tables 1 and 2): formulas, figures, and their omissions.

Let F be the operations of the network for one example, Theta the bytes of its parameters, C the bytes of a
prototype, D_L and D_U a client's labeled and unlabeled examples, E the epochs, H the helpers, renewed every
R_H rounds, K the classes and A the augmentations. A client computes and exchanges in a round

    MixMatch-FedAvg   F (D_L + A D_U) E                             2 Theta
    FixMatch-FedAvg   F (D_L + 2 D_U) E                             2 Theta
    FedMatch          F (D_L + (2 + H) D_U) E                       (4 + 2 H / R_H) Theta
    ProtoFSSL         F (D_L + D_U) E + C H K D_U E + F D_L         2 Theta + C (1 + H) K

(Kim, Park, Sohn, Shu, Kim, arXiv 2205.13921.) Its figures follow with D_L = 50, D_U = 490, A = H = 2, R_H =
10, which it states or cites, and with E = 1 and F = 0.759e9, which it does not state: the forward pass of
ResNet-9 with a multiply-add as two operations. So the figures count one epoch of forward passes. The paper
omits several costs:

  * Training also has backward passes, at about twice the cost, except for passes that only make labels.
    Tables 1 and 2 do not distinguish them.
  * C H K D_U E uses bytes as operations; distances to prototypes take three operations per number.
  * 2 H / R_H counts a helper's model twice: here the server has it already and sends H / R_H Theta.
  * Prototypes are counted without the K bits that mark the existing ones; here with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class CostSetting(NamedTuple):
    """Variables of the formulas; the module's docstring defines the letters."""

    operations: float  # F
    model_bytes: float  # Theta
    labeled: float  # D_L
    unlabeled: float  # D_U
    epochs: int = 1  # E
    helpers: int = 2  # H
    interval: int = 10  # R_H
    prototype_bytes: float = 2048  # C
    classes: int = 10  # K
    augmentations: int = 2  # A


class PaperCosts(NamedTuple):
    """One row of the two tables: formulas for a client's operations and bytes in a round, and the figures."""

    method: str
    operations: Callable[[CostSetting], float]
    bytes: Callable[[CostSetting], float]
    gigaflop: float
    megabytes: float


def _passes(of_unlabeled: Callable[[CostSetting], float]) -> Callable[[CostSetting], float]:
    """F (D_L + n D_U) E."""
    return lambda s: s.operations * (s.labeled + of_unlabeled(s) * s.unlabeled) * s.epochs


def _both_ways(setting: CostSetting) -> float:
    return 2 * setting.model_bytes


def _protofssl(setting: CostSetting) -> float:
    s = setting
    distances = s.prototype_bytes * s.helpers * s.classes * s.unlabeled * s.epochs
    return _passes(lambda s: 1)(s) + distances + s.operations * s.labeled


# By the algorithm's name here. FedRGD's client is FixMatch's.
PAPER_COSTS = {
    "mixmatch": PaperCosts(
        "MixMatch-FedAvg", _passes(lambda s: s.augmentations), _both_ways, 782.0, 52.6
    ),
    "fixmatch": PaperCosts("FixMatch-FedAvg", _passes(lambda s: 2), _both_ways, 782.0, 52.6),
    "fedmatch": PaperCosts(
        "FedMatch",
        _passes(lambda s: 2 + s.helpers),
        lambda s: (4 + 2 * s.helpers / s.interval) * s.model_bytes,
        1526.0,
        115.6,
    ),
    "protofssl": PaperCosts(
        "ProtoFSSL",
        _protofssl,
        lambda s: _both_ways(s) + s.prototype_bytes * (1 + s.helpers) * s.classes,
        447.9,
        52.6,
    ),
}
