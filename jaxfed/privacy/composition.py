"""Composition of several releases of the same data, each with fresh noise.

    pure           eps_total = R eps                                              delta = 0 (basic)
    concentrated   rho = R eps^2 / 2         (Bun, Steinke, TCC 2016, Proposition 1.4, Lemma 1.7)
    approximate    eps_total = min( rho + 2 sqrt(rho ln(1 / delta)), R eps )    (Proposition 1.3)

A release may depend on earlier releases. In FedCT every communication is one release: T / b of them over T
rounds with communication period b. The paper states the eps of one.
"""

from __future__ import annotations

import math

from jaxfed.errors import UsageError


def basic(epsilon: float, releases: int) -> float:
    """R eps: pure epsilon of R releases at `epsilon` each.

    Raises:
        UsageError: epsilon below 0, or a negative number of releases.
    """
    if not epsilon >= 0 or releases < 0:
        raise UsageError(
            f"epsilon={epsilon}, releases={releases}: use numbers and integers from 0 on"
        )
    return releases * epsilon


def approximate(epsilon: float, releases: int, delta: float) -> float:
    """eps at `delta` of R releases at pure `epsilon` each; never more than `basic`.

    Raises:
        UsageError: delta outside of (0, 1), and as `basic`.
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta}: use numbers strictly between 0 and 1")
    pure, rho = basic(epsilon, releases), releases * epsilon**2 / 2
    return min(rho + 2 * math.sqrt(rho * math.log(1 / delta)), pure)
