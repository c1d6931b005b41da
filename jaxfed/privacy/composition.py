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
    _check(epsilon, releases)
    return releases * epsilon


def each(total: float, releases: int) -> float:
    """eps of each of R releases that together cost `total`, by `basic`.

    Raises:
        UsageError: a total below 0, or no release.
    """
    _check(total, releases)
    if not releases:
        raise UsageError("releases=0: use integers from 1 on")
    return total / releases


def zcdp(epsilon: float, releases: int) -> float:
    """rho of R releases at pure `epsilon` each.

    Raises:
        UsageError: as `basic`.
    """
    _check(epsilon, releases)
    return releases * epsilon**2 / 2


def approximate(epsilon: float, releases: int, delta: float) -> float:
    """eps at `delta` of R releases at pure `epsilon` each; never more than `basic`.

    Raises:
        UsageError: delta outside of (0, 1), and as `basic`.
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta}: use numbers strictly between 0 and 1")
    rho = zcdp(epsilon, releases)
    return min(rho + 2 * math.sqrt(rho * math.log(1 / delta)), basic(epsilon, releases))


def _check(epsilon: float, releases: int) -> None:
    if not epsilon >= 0 or releases < 0:
        raise UsageError(
            f"epsilon={epsilon}, releases={releases}: use numbers and integers from 0 on"
        )
