"""A client's summand of a sum under masks: its party is replayed from 32 random bytes and the letters so far.

The first letter of a session is "join": the client draws 32 bytes from its operating system. A state in
between serves one step only (`once`): two continuations of it would seal two texts under one nonce. After the
last letter, "end", the client forgets these bytes.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure import vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session import letters
from jaxfed.secure.session.replayed_party import ReplayedParty, Role
from jaxfed.training.consensus.client_sums import ConsensusSums

JOIN, END = "join", "end"  # the first and the last exchange of a session
VOTES, NUMBERS = "votes", "numbers"
NO_SESSION = {"once": False, "round": 0, "seed": b"", "past": b"", "tally": b""}
_STEPS = frozenset(
    (
        *("upload", "finish", "announce", "share_secrets", "collect_secrets", "abandon"),
        *("hear_survivors", "reveal"),
    )
)


def answered(
    step: str,
    own: Mapping[str, Any],
    request: Mapping[str, Any],
    sums: ConsensusSums,
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer one letter of the session of a round; returns the new state and the reply.

    Raises:
        ProtocolError: a letter that does not belong to the state.
    """
    address, number = _session(request["session"])
    if not own["tally"] or own["round"] != number:
        raise ProtocolError(f"step {step!r} of round {number} without answers of that round")
    seed, past = own["seed"], letters.parsed(own["past"])
    if step == JOIN and not past:
        seed = random_bytes(32)
    elif not past:
        raise ProtocolError(f"step {step!r} without a session that this client has joined")
    party = ReplayedParty(address, seed, _roles(_tally(own["tally"]), sums))
    for before in past:
        party.play(before)
    frames = party.play(request["letter"])
    if step == END:
        return {**own, **NO_SESSION}, {"frames": frames}
    kept = {"once": True, "seed": seed, "past": letters.packed([*past, request["letter"]])}
    return {**own, **kept}, {"frames": frames}


def tally_bytes(tally: np.ndarray) -> bytes:
    """Encode a client's summand [U, C]."""
    content = io.BytesIO()
    np.save(content, tally, allow_pickle=False)
    return content.getvalue()


def _tally(content: bytes) -> np.ndarray:
    found: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return found


def _roles(tally: np.ndarray, sums: ConsensusSums) -> dict[str, Role]:
    def role(constructor: Callable[..., Any]) -> Role:
        def made(endpoint: Any, own: Any, **plan: Any) -> Any:
            if plan["is_resilient"] is not (sums == "masked_resilient"):
                raise ProtocolError("a sum by another protocol than the settings say")
            if len(set(plan["clients"])) < 2 or endpoint.address not in plan["clients"]:
                raise ProtocolError("a sum of this client alone")
            return constructor(endpoint, own, **plan)

        return Role(made, lambda _: tally, _STEPS, frozenset({"clients", "is_resilient"}))

    are_votes = np.issubdtype(tally.dtype, np.integer)
    return {VOTES: role(vote_sums.client)} if are_votes else {NUMBERS: role(server_sums.client)}


def _session(text: str) -> tuple[int, int]:
    """Read the client's address and the round.

    Raises:
        ProtocolError: there are none.
    """
    try:
        given = json.loads(text)
        address, number = given["address"], given["round"]
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError("a malformed session") from error
    if any(type(value) is not int or value < 0 for value in (address, number)):
        raise ProtocolError("a malformed session")
    return address, number
