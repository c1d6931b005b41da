"""One run of a protocol among simulated clients: a session of its own, whose keys are the operating system's.

histogram = in_fresh_session(vote_histogram, own, communication, is_resilient=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxfed.federation.communication import Communication

Result = TypeVar("Result")


def in_fresh_session(
    protocol: Callable[..., Result],
    own: Sequence[Any],
    communication: Communication,
    **settings: Any,
) -> Result:
    """What the protocol gives its server, of as many clients as there are inputs.

    Args:
        protocol: (session, {address: input}, **settings) -> result.
        own: the clients' inputs; their addresses are 0, 1, ...
        communication: all that the session sends is counted here, what sets it up included.
        settings: of the protocol.

    Raises:
        UsageError: no clients; and what the protocol raises.

    Cost: setup (`jaxfed.secure.session.parties.Session`) and the protocol's.
    """
    from jaxfed.secure.session.parties import Session

    session = Session(len(own))
    result = protocol(session, dict(enumerate(own)), **settings)
    communication.add(session.communication())
    return result
