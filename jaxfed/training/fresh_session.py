"""One run of a protocol among simulated clients: a session of its own, whose keys are the operating system's.

histogram = in_fresh_session(vote_histogram, own, communication, is_resilient=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxfed.federation.communication import Communication
from jaxfed.training.attendance import Attendance

Result = TypeVar("Result")


def in_fresh_session(
    protocol: Callable[..., Result],
    own: Sequence[Any],
    communication: Communication,
    *,
    attendance: Attendance | None = None,
    **settings: Any,
) -> Result:
    """What the protocol gives its server, of as many clients as there are inputs.

    Args:
        protocol: (session, {address: input}, **settings) -> result.
        own: the clients' inputs; their addresses are 0, 1, ...
        communication: all that the session sends is counted here, what sets it up included.
        attendance: who leaves, and what came of it; the protocol says whom its result is of (`summed`).
        settings: of the protocol.

    Raises:
        UsageError: no clients; and what the protocol raises.

    Cost: setup (`jaxfed.secure.session.parties.Session`) and the protocol's.
    """
    from jaxfed.secure.session.parties import Session

    if attendance is None:
        session = Session(len(own))
        result = protocol(session, dict(enumerate(own)), **settings)
    else:
        session, summed = Session(len(own), presence=attendance.presence()), list[int]()
        result = protocol(session, dict(enumerate(own)), summed=summed, **settings)
        attendance.note(summed, sorted(session.presence.gone))
    communication.add(session.communication())
    return result
