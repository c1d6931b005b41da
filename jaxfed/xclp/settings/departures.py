"""Simulated client dropouts during a labeling, by stage: `Parameters.presence` (Section 3.3).

    ("3@hamming", "20%@row_sums")

Client 3 leaves before it sends anything for SecureHamming, and one client in five before its upload for
SecureRowSums (`jaxfed.federation.departures`). Shares are drawn from the run's seed. Stages are those of
the labeling. Clients that have left do not take part in labeling later points
(`jaxfed.xclp.later_points.out_of_sample`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxfed.federation import departures
from jaxfed.federation.departures import Departure, Stage
from jaxfed.settings import Described

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence

Entries = Annotated[Sequence[str], Described("a tuple of 'CLIENT@STAGE' or 'SHARE%@STAGE'")]
STAGES: dict[str, Stage] = {
    "setup": Stage("receive", "invite", "a protocol in xclp.hamming or xclp.row_sums"),
    "hamming": Stage("send", "own", "a protocol in xclp.hamming"),
    "influence": Stage(
        "send", "positions", "a protocol, and one in xclp.row_sums if xclp.influence='labels'"
    ),
    "row_sums": Stage("send", "upload", "a protocol in xclp.row_sums"),
    "sums": Stage("receive", "sums", "a protocol in xclp.row_sums"),
    "confidence": Stage("send", "confidence", "a protocol, and xclp.relative_confidence=True"),
}


def parsed(entries: Sequence[str]) -> list[Departure]:
    """Parse the entries of `Parameters.presence`.

    Raises:
        UsageError: an invalid entry, with what is allowed.
    """
    return departures.parsed(entries, STAGES, "presence", "xclp")


def presence_of(entries: Sequence[str], clients: Sequence[int], seed: int) -> Presence:
    """Planned departures of the clients of one session.

    Args:
        entries: as in the module's docstring.
        clients: the federation's number of every client of the cohort, in the session's order.
        seed: of the draw.
    """
    from jaxfed.secure.session import departures as planned  # protocols alone have a session

    return planned.presence_of(parsed(entries), clients, seed, STAGES)
