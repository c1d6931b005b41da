"""Planned dropouts of one session: from the entries of a setting to the messages that are lost.

The entries are parsed by `jaxfed.federation.departures`. Shares are of the cohort, rounded; the clients are
drawn from a seed, out of those that stay so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxfed.federation.departures import Departure, Stage
from jaxfed.secure.session.channel import Presence


def presence_of(
    departures: Sequence[Departure],
    clients: Sequence[int],
    seed: int | Sequence[int],
    stages: Mapping[str, Stage],
) -> Presence:
    """Planned departures of the clients of one session.

    Args:
        departures: as parsed.
        clients: the federation's number of every client of the cohort, in the session's order.
        seed: of the draw.
        stages: the stages that they name.
    """
    presence, rng = Presence(), np.random.default_rng(seed)
    staying = list(range(len(clients)))  # by address
    for departure in sorted(departures, key=lambda departure: departure.client is None):
        if departure.client is None:
            count = min(round(departure.share * len(clients)), len(staying))
            leaving = sorted(rng.permutation(staying)[:count].tolist())
        else:
            leaving = [address for address in staying if clients[address] == departure.client]
        for address in leaving:
            action, kind, _ = stages[departure.stage]
            presence.lose_when(address, action, kind)
            staying.remove(address)
    return presence
