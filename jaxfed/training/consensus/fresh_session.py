"""One run of a secure protocol among simulated clients, in a new session with keys from the system.

histogram = in_fresh_session(vote_histogram, own, communication, is_resilient=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxfed.federation.communication import Communication
from jaxfed.training.consensus.dropout import Attendance

R = TypeVar("R")


def in_fresh_session(
    protocol: Callable[..., R],
    own: Sequence[Any],
    communication: Communication,
    *,
    attendance: Attendance | None = None,
    mask_partners: int = 0,
    **settings: Any,
) -> R:
    """Run the protocol with one client per input, and return the server's result.

    Args:
        protocol: (session, {address: input}, **settings) -> result.
        own: the clients' inputs; their addresses are 0, 1, ...
        communication: all bytes that the session sends are counted here, its setup included.
        attendance: the planned departures, and their outcome.
        mask_partners: number of others that a client shares keys with; 0: all.
        settings: keywords of the protocol.

    Raises:
        UsageError: no clients, too few partners; and errors of the protocol.

    Cost: setup (`jaxfed.secure.session.parties.Session`) and the protocol's.
    """
    from jaxfed.secure.session.parties import Session

    if attendance is None:
        session = Session(len(own), mask_partners=mask_partners)
        result = protocol(session, dict(enumerate(own)), **settings)
    else:
        presence = attendance.presence()
        session = Session(len(own), presence=presence, mask_partners=mask_partners)
        result = protocol(session, dict(enumerate(own)), **settings)
        attendance.note(session.contributors, session.presence.gone)
    communication.add(session.communication())
    return result
