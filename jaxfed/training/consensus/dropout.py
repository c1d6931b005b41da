"""Dropout during a masked sum: the clients that leave, and the clients whose answers the sum holds.

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

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.departures import Departure, Stage, parsed
from jaxfed.secure.session.departures import presence_of

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence

STAGES: dict[str, Stage] = {
    "setup": Stage("receive", "invite", "sums under masks"),
    "survivors": Stage("receive", "survivors", "sums='masked_resilient'"),
    "sums": Stage("receive", "sums", "sums under masks"),
    "upload": Stage("send", "upload", "sums under masks"),
}


class Attendance:
    """Planned departures and final outcome among the clients of one masked sum.

    Args:
        client_id: int32 [K], the federation's ids of the participating clients; -1 in other rows.
        departures: the planned departures.
        key: typed, for drawing shares of clients.

    Attributes:
        summed: int32, ids of the clients in the sum; all participants until `note` is called.
        left: int32, ids of the clients that left.
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
    """Parse the departures listed in setting `key`, and check that `sums` has their stages.

    Raises:
        UsageError: an entry that is no departure, or a stage that these sums do not have.
    """
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
