"""Who leaves a simulated run, and at which stage: what `Parameters.presence` says (Section 3.3).

    ("3@hamming", "20%@row_sums")

Client 3 leaves before it sends anything for SecureHamming, and one client in five before its upload for
SecureRowSums. Numbers are those of the federation; one that is not in a round's cohort leaves nothing.
Shares are of the cohort, rounded; who they are is drawn from the run's seed, out of those who stay so
far. Any single message: `jaxfed.secure.session.channel.Presence`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxfed.errors import UsageError

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Action, Presence


class Stage(NamedTuple):
    """A stage begins for a client when it is to do `action` with `kind`; `needs` says what it is part of."""

    action: Action
    kind: str
    needs: str


STAGES: dict[str, Stage] = {
    "setup": Stage("receive", "invite", "a protocol in xclp.hamming or xclp.row_sums"),
    "hamming": Stage("send", "own", "a protocol in xclp.hamming"),
    "influence": Stage(
        "send", "positions", "a protocol, and one in xclp.row_sums if xclp.influence='labels'"
    ),
    "row_sums": Stage("send", "upload", "a protocol in xclp.row_sums"),
    "sums": Stage("receive", "sums", "a protocol in xclp.row_sums"),
    "confidence": Stage("send", "confidence", "a protocol, and xclp.relative_confidence=True"),
}


class Departure(NamedTuple):
    """One entry: a client, or a share of them, and the stage they leave at."""

    client: int | None
    share: float
    stage: str


def parsed(entries: Sequence[str]) -> list[Departure]:
    """The entries of `Parameters.presence`.

    Raises:
        UsageError: an entry that is none, with what is allowed.
    """
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise UsageError(f"xclp.presence={entries!r}: allowed are tuples of 'CLIENT@STAGE'")
    return [_parsed(entry) for entry in entries]


def presence_of(entries: Sequence[str], clients: Sequence[int], seed: int) -> Presence:
    """Who leaves among the parties of one session.

    Args:
        entries: as in the module's docstring.
        clients: the federation's number of every client of the cohort, in the session's order.
        seed: of the draw.
    """
    from jaxfed.secure.session.channel import Presence  # here, because only protocols need it

    presence, rng = Presence(), np.random.default_rng(seed)
    staying = list(range(len(clients)))  # by address
    for departure in sorted(parsed(entries), key=lambda departure: departure.client is None):
        if departure.client is None:
            count = min(round(departure.share * len(clients)), len(staying))
            leaving = sorted(rng.permutation(staying)[:count].tolist())
        else:
            leaving = [address for address in staying if clients[address] == departure.client]
        for address in leaving:
            action, kind, _ = STAGES[departure.stage]
            presence.lose_when(address, action, kind)
            staying.remove(address)
    return presence


def _parsed(entry: object) -> Departure:
    allowed = (
        "allowed are 'CLIENT@STAGE' and 'SHARE%@STAGE', such as '3@hamming' and '20%@row_sums', with "
        f"stages {', '.join(STAGES)}"
    )
    found = (
        re.fullmatch(r"(\d+)@(\w+)|(\d+(?:\.\d+)?)%@(\w+)", entry, re.ASCII)
        if isinstance(entry, str)
        else None
    )
    if not found:
        raise UsageError(f"xclp.presence={entry!r}: {allowed}")
    client, own_stage, share, shared_stage = found.groups()
    departure = Departure(
        None if client is None else int(client),
        float(share or 0) / 100,
        own_stage or shared_stage,
    )
    if departure.stage not in STAGES or departure.share > 1:
        raise UsageError(f"xclp.presence={entry!r}: {allowed}")
    return departure
