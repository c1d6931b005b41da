"""A client's summand of a sum under masks (`jaxfed.secure.session.network.exchanges`).

The client keeps its summand with its state from its turn to the last exchange of that round's session.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.host.safe_files import array
from jaxfed.secure import vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.neighborhoods import PROMISE
from jaxfed.secure.session.network import exchanges
from jaxfed.secure.session.network.replayed_party import ReplayedParty, Role
from jaxfed.training.consensus.client_sums import ConsensusSums

VOTES, NUMBERS = "votes", "numbers"
SPARSE_VOTES, SPARSE_NUMBERS = "votes among neighbors", "numbers among neighbors"
NO_SUMMAND = {**exchanges.NO_SESSION, "tally": b""}


def answered(
    step: str,
    own: Mapping[str, Any],
    request: Mapping[str, Any],
    sums: ConsensusSums,
    mask_partners: int,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer one letter of the session of a round; returns the new state and the reply.

    Raises:
        ProtocolError: a letter that does not belong to the state.
    """
    address, number = exchanges.terms_of(request, "address", "round")
    if not own["tally"] or own["round"] != number:
        raise ProtocolError(f"step {step!r} of round {number} without answers of that round")

    def party_of(seed: bytes) -> ReplayedParty:
        roles = _roles(_tally(own["tally"]), sums)
        return ReplayedParty(address, seed, roles, may_be_sparse=mask_partners > 0)

    kept, frames = exchanges.answered(step, own, request, party_of, random_bytes=random_bytes)
    forgotten = NO_SUMMAND if step == exchanges.END else {}
    return {**own, **forgotten, **kept}, {"frames": frames}


def tally_bytes(tally: np.ndarray) -> bytes:
    """Encode a client's summand [U, C]."""
    content = io.BytesIO()
    np.save(content, tally, allow_pickle=False)
    return content.getvalue()


def _tally(content: bytes) -> np.ndarray:
    return array(content)


def _roles(tally: np.ndarray, sums: ConsensusSums) -> dict[str, Role]:
    def sparse(constructor: Callable[..., Any]) -> Role:
        def made(endpoint: Any, own: Any, **plan: Any) -> Any:
            if not plan["is_resilient"] or plan["promise"] != list(PROMISE):
                raise ProtocolError("a sum with another promise than the settings say")
            number = plan["clients"]
            if type(number) is not int or number < len(endpoint.clients):
                raise ProtocolError("a sum of fewer clients than the session's")
            return constructor(endpoint, own, **plan)

        plan = frozenset({"clients", "is_resilient", "promise"})
        return Role(made, lambda _: tally, server_sums.CLIENT_STEPS, plan)

    def role(constructor: Callable[..., Any]) -> Role:
        def made(endpoint: Any, own: Any, **plan: Any) -> Any:
            if plan["is_resilient"] is not (sums == "masked_resilient"):
                raise ProtocolError("a sum by another protocol than the settings say")
            if plan["clients"] != endpoint.clients or len(endpoint.clients) < 2:
                raise ProtocolError("a sum of this client alone, or of others than the session's")
            return constructor(endpoint, own, **plan)

        plan = frozenset({"clients", "is_resilient"})
        return Role(made, lambda _: tally, server_sums.CLIENT_STEPS, plan)

    are_votes = np.issubdtype(tally.dtype, np.integer)
    if are_votes:
        return {VOTES: role(vote_sums.client), SPARSE_VOTES: sparse(vote_sums.client)}
    return {NUMBERS: role(server_sums.client), SPARSE_NUMBERS: sparse(server_sums.client)}
