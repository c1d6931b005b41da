"""Sums of updates under masks on a network (`jaxfed.training.round.masked_sums`), both sides.

    step                   client j                                        client j replies
    "update", "measure"    computes its update or statistics, keeps z_j    how many numbers it has
    letters of a session   takes part in the sum                           frames
    "end"                  forgets z_j

A client replies with its update to nobody. One that leaves the sum has left the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.federation.algorithm import ClientSide, Unusable
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.neighborhoods import enough_partners
from jaxfed.secure.session.network import exchanges
from jaxfed.secure.session.network.remote_session import RemoteSession
from jaxfed.secure.session.network.replayed_party import ReplayedParty
from jaxfed.training.consensus.client_sums import fewest_clients
from jaxfed.training.round.masked_sums import (
    Summand,
    SummedClients,
    measured_summand,
    sum_in,
    summand_from,
    summand_of,
    vector_of,
)
from jaxfed.training.round.network import AFTER_MEAN, EMBED, MEASURE, UPDATE, AskedClients
from jaxfed.training.server_state import ServerState

ROLE = "updates"
STEPS = frozenset((UPDATE, *AFTER_MEAN, EMBED))  # of the side in the clear, but for sessions
SIZE = {"numbers": 0}
NO_SUMMAND = {**exchanges.NO_SESSION, "summand": b""}


@dataclass(frozen=True, eq=False)
class SummingClient:
    """A client whose update enters a sum alone: the functions of a `ClientSide`.

    Attributes:
        inner: the client's side of the same method in the clear.
    """

    inner: ClientSide

    @property
    def side(self) -> ClientSide:
        """The functions of a client."""
        return ClientSide(self.init, self.answer, self.form, self.stored, labels=self.inner.labels)

    def init(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        """Return the client's state before its first round."""
        return {**NO_SUMMAND, "inner": self.inner.init(key, federation)}

    def stored(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        """Return the form of a state."""
        return {**NO_SUMMAND, "inner": self.inner.state_form(key, federation)}

    def form(self, step: str, federation: Federation) -> Any:
        """Return the form of a request."""
        return self.inner.form(step, federation) if step in STEPS else exchanges.REQUEST

    def answer(
        self, step: str, own: Mapping[str, Any], request: Any, cohort: Cohort
    ) -> tuple[dict[str, Any], Any]:
        """Return the client's new state and its reply.

        Raises:
            ProtocolError: a letter that does not belong to the state.
        """
        if step in STEPS or not own["summand"]:
            inner, reply = self.inner.answer(step, own["inner"], request, cohort)
            is_once = isinstance(inner, dict) and bool(inner.get("once"))
            after = {**NO_SUMMAND, "once": is_once, "inner": inner}
            if step not in (UPDATE, MEASURE):
                return after, reply
            vector = vector_of(_summand(step, jax.tree.map(np.asarray, reply)))
            number = int(request.round) + (step == UPDATE)
            return after | {"summand": vector.tobytes(), "round": number}, {"numbers": vector.size}
        address, number = exchanges.terms_of(request, "address", "round")
        if own["round"] != number:
            raise ProtocolError(f"step {step!r} of round {number} without an update of that round")
        vector = np.frombuffer(own["summand"]).reshape(-1, 1)
        roles = server_sums.roles(ROLE, server_sums.client, vector, is_resilient=True)

        def party_of(seed: bytes) -> ReplayedParty:
            return ReplayedParty(address, seed, roles, may_be_sparse=True)

        kept, frames = exchanges.answered(step, own, request, party_of)
        forgotten = {"summand": b""} if step == exchanges.END else {}
        return {**own, **forgotten, **kept}, {"frames": frames}


class SummedAskedClients(SummedClients, AskedClients):
    """The clients of a round on a network, of which the server receives the sums."""

    def total(self, step: str, state: ServerState, *others: Any) -> Summand:
        """Return the sum over the clients that stay until their upload."""
        *_, received, key = ((), *others)  # of measured statistics the key alone
        requests, form = self.requests(step, state, received, key)
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
        empty = _summand(step, nothing)
        size, number = vector_of(empty).size, int(state.round) + (step == UPDATE)

        def check(client: int, reply: Mapping[str, Any]) -> None:
            if reply["numbers"] != size:
                raise Unusable(f"{reply['numbers']} numbers in place of {size}")

        ids = sorted(self.ask(step, requests, SIZE, round_number=number, check=check))
        total, summed = None, list[int]()
        if len(ids) >= fewest_clients(self.parts.training.server.sums):
            carry = exchanges.carried(self.ask, ids, {"round": number})
            partners = enough_partners(len(ids), 1)
            role = server_sums.role_of(ROLE, len(ids), partners)
            session = RemoteSession(
                len(ids), carry, {server_sums.client: role}, mask_partners=partners
            )
            total = sum_in(session, dict.fromkeys(range(len(ids))), size)
            summed = [ids[address] for address in session.contributors]
            session.later_all(session.clients)
            session.flush(exchanges.END)
            self.communication.add(session.communication())
        self.keep(summed)
        return empty if total is None else summand_from(total, empty)


def _summand(step: str, reply: Any) -> Summand:
    if step == MEASURE:
        return measured_summand(*reply)
    return summand_of(reply.update, reply.trains, reply.labels, reply.unlabeled)
