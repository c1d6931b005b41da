"""Who leaves while clients' answers are added up under masks, and whose are in the sum then.

    fedct.presence = ("3@upload", "20%@survivors")

in every round: client 3, where it answers, leaves before its upload, and one in five of those who answer
after theirs (`jaxfed.secure.session.departures`). The stages, and what a departure at each comes to:

    setup        before it has keys: the sum is of the others
    upload       before its upload: likewise; `masked` starts another round without it
    survivors    after its upload, `masked_resilient` alone: its answers are in the sum, if enough stay to
                 take its masks off, else another round starts without it
    sums         when all is done: its answers are in the sum

Where fewer than two stay there is no sum. Who has left is there again in the next round, and has the
consensus by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.secure.session.departures import Departure, Stage, parsed, presence_of

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence

STAGES: dict[str, Stage] = {
    "setup": Stage("receive", "invite", "sums under masks"),
    "survivors": Stage("receive", "survivors", "sums='masked_resilient'"),
    "sums": Stage("receive", "sums", "sums under masks"),
    "upload": Stage("send", "upload", "sums under masks"),
}


class Attendance:
    """Of the clients of one sum.

    Args:
        client_id: int32 [K], the federation's numbers of those who answer; -1 of rows that do not.
        departures: who leaves.
        key: typed, of the draw of shares.

    Attributes:
        summed: int32, whose answers the sum is of; everybody's until `note` says otherwise.
        left: int32, who has left.
    """

    def __init__(
        self, client_id: np.ndarray, departures: Sequence[Departure], key: jax.Array
    ) -> None:
        ids = np.asarray(client_id, np.int32)
        self._ids, self._departures, self._key = ids[ids >= 0], departures, key
        self.summed, self.left = self._ids, self._ids[:0]

    def presence(self) -> Presence:
        """For a session whose addresses 0, 1, ... are those who answer, in their order."""
        seed = np.asarray(jax.random.key_data(self._key)).tolist()
        return presence_of(self._departures, self._ids.tolist(), seed, STAGES)

    def note(self, summed: Sequence[int], left: Sequence[int]) -> None:
        """What came of it, by addresses."""
        self.summed, self.left = self._ids[sorted(summed)], self._ids[sorted(left)]


def departures_of(entries: Sequence[str], sums: str, key: str) -> list[Departure]:
    """The entries of a setting of this name, beside these sums.

    Raises:
        UsageError: an entry that is none, or a stage that these sums do not have.
    """
    departures = parsed(entries, STAGES, key)
    for departure in departures:
        is_there = sums == "masked_resilient" or (
            sums == "masked" and departure.stage != "survivors"
        )
        if not is_there:
            raise UsageError(
                f"{key}={tuple(entries)!r}: stage {departure.stage!r} needs "
                f"{STAGES[departure.stage].needs}; sums={sums!r}"
            )
    return departures
