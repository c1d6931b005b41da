"""Composition of several releases of the same data, each with fresh noise.

    pure           eps_total = R eps                                              delta = 0 (basic)
    concentrated   rho = R eps^2 / 2         (Bun, Steinke, TCC 2016, Proposition 1.4, Lemma 1.7)
    approximate    eps_total = min( rho + 2 sqrt(rho ln(1 / delta)), R eps )    (Proposition 1.3)

A release may depend on earlier releases. In FedCT every communication is one release: T / b of them over T
rounds with communication period b. The paper states the eps of one.
"""

from __future__ import annotations

import math


def basic(epsilon: float, releases: int) -> float:
    """R eps: pure epsilon of R releases at `epsilon` each."""
    return releases * epsilon


def approximate(epsilon: float, releases: int, delta: float) -> float:
    """eps at `delta` in (0, 1) of R releases at pure `epsilon` each; never more than `basic`."""
    pure, rho = basic(epsilon, releases), releases * epsilon**2 / 2
    return min(rho + 2 * math.sqrt(rho * math.log(1 / delta)), pure)
