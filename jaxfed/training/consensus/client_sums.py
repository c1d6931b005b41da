"""Sums over the clients of one round under masks, and the clients that leave in one.

    total = in_fresh_session(vote_histogram, own, communication, is_resilient=True)
    total = summed_answers(answers, voters, "masked", communication)

A sum in the clear shows the server each client's part. Under masks it learns the sum alone; that needs at
least two clients, since one client's sum is its answers.

Dropout during a masked sum is planned by

    fedct.presence = ("3@upload", "20%@survivors")

in every round: client 3, if it takes part, leaves before its upload, and one in five of the participants
leaves after its own (`jaxfed.federation.departures`). The stages, and the effect of leaving at each:

    setup        before it has keys: the sum is over the others
    upload       before its upload: likewise; `masked` starts another round without it
    survivors    after its upload, `masked_resilient` alone: its answers are in the sum if enough clients
                 stay to remove its masks, else another round starts without it (with `mask_partners`
                 there is no sum then)
    sums         after the sum is complete: its answers are in the sum

If fewer than two clients stay there is no sum. A client that left is back in the next round, and has the
consensus by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.federation.departures import Departure, Stage, parsed
from jaxfed.secure.session.channel import presence_of
from jaxfed.training.consensus.consensus import summed_probabilities

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence

ConsensusSums = Literal["plaintext", "masked", "masked_resilient"]
R = TypeVar("R")

STAGES: dict[str, Stage] = {
    "setup": Stage("receive", "invite", "sums under masks"),
    "survivors": Stage("receive", "survivors", "sums='masked_resilient'"),
    "sums": Stage("receive", "sums", "sums under masks"),
    "upload": Stage("send", "upload", "sums under masks"),
}


def fewest_clients(sums: ConsensusSums) -> int:
    """Least number of clients in a sum: 2 under masks, so that it reveals no single client's answers."""
    return 1 if sums == "plaintext" else 2


def in_fresh_session(
    protocol: Callable[..., R], own: Sequence[Any], communication: Communication, **settings: Any
) -> R:
    """Run a secure protocol, (session, {address: input}, **settings), among simulated clients.

    The session is new, with keys from the system; all its bytes are counted, its setup included.
    """
    from jaxfed.secure.session.parties import Session

    session = Session(len(own))
    result = protocol(session, dict(enumerate(own)), **settings)
    communication.add(session.communication())
    return result


def summed_answers(
    answers: np.ndarray, client_id: np.ndarray, sums: ConsensusSums, communication: Communication
) -> np.ndarray:
    """Sum the clients' probabilities or scores, float32 [n, C] of [K, n, C]; `client_id` -1: no client.

    All protocols give the same up to 2^-41 per client and float32 rounding. Zeros if a masked sum has fewer
    than two clients; nothing is sent then.
    """
    rows = np.flatnonzero(np.asarray(client_id) >= 0)
    if sums == "plaintext":
        communication.up("votes", answers[rows].nbytes)
        return np.asarray(summed_probabilities(jnp.asarray(answers), jnp.asarray(client_id)))
    from jaxfed.secure.row_sums.server_sums import server_sums

    nothing = np.zeros(answers.shape[1:], np.float32)
    if len(rows) < fewest_clients(sums):
        return nothing
    is_resilient = sums == "masked_resilient"
    total = in_fresh_session(
        server_sums, list(answers[rows]), communication, is_resilient=is_resilient
    )
    return nothing if total is None else total.astype(np.float32)


class Attendance:
    """Planned departures and final outcome among the clients of one masked sum.

    Clients go by `client_id`, int32 [K], the federation's ids; -1 in rows without one. `key` draws shares.
    `summed` and `left` are the ids of the clients in the sum, and of those that left, once `note` is called.
    """

    def __init__(
        self, client_id: np.ndarray, departures: Sequence[Departure], key: jax.Array
    ) -> None:
        ids = np.asarray(client_id, np.int32)
        self._ids, self._departures, self._key = ids[ids >= 0], departures, key
        self.summed, self.left = self._ids, self._ids[:0]

    def presence(self) -> Presence:
        """Return the presence for a session whose addresses 0, 1, ... are the participants, in order."""
        seed = np.asarray(jax.random.key_data(self._key)).tolist()
        return presence_of(self._departures, self._ids.tolist(), seed, STAGES)

    def note(self, summed: Collection[int], left: Collection[int]) -> None:
        """Record the outcome: addresses of the clients in the sum, and of those that left."""
        self.summed, self.left = self._ids[list(summed)], self._ids[list(left)]


def departures_of(entries: Sequence[str], sums: str, key: str, owner: str = "") -> list[Departure]:
    """Parse the departures listed in setting `key`, and check that `sums` has their stages."""
    departures = parsed(entries, STAGES, key, owner)
    for departure in departures:
        is_there = sums == "masked_resilient" or (
            sums == "masked" and departure.stage != "survivors"
        )
        if not is_there:
            raise UsageError(
                f"stage {departure.stage!r} needs {STAGES[departure.stage].needs}; sums={sums!r}",
                key=key,
                owner=owner,
                value=tuple(entries),
            )
    return departures
