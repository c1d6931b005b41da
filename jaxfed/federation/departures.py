"""Simulated client dropouts, by stage of a run.

    ("3@upload", "20%@setup")

Client 3 leaves before its upload, and one client in five before it has keys. Numbers are those of the
federation; an entry for a client outside a round's cohort has no effect. Shares are of the cohort, rounded.
The leaving clients are drawn with a seed, among those that have no earlier entry. Each method defines its
stages. For any single message: `jaxfed.secure.session.channel.Presence`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from jaxfed.errors import UsageError

Action = Literal["send", "receive"]
_ENTRY = re.compile(r"(?:(\d+)|(\d+(?:\.\d+)?)%)@(\w+)", re.ASCII)


class DroppedOut(Exception):
    """The client of this address has left: messages that it should have sent or received are lost."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} dropped out")
        self.client = client


class Stage(NamedTuple):
    """A stage begins when a client is to do `action` with `kind`; `needs` names the settings it requires."""

    action: Action
    kind: str
    needs: str


class Departure(NamedTuple):
    """One entry: a client, or a share of them, and the stage they leave at."""

    client: int | None
    share: float
    stage: str


def parsed(
    entries: Sequence[str], stages: Mapping[str, Stage], key: str, owner: str = ""
) -> list[Departure]:
    """Parse the entries of the setting `key` of `owner`.

    Raises:
        UsageError: an invalid entry, with what is allowed; a client that leaves twice.
    """
    refused = partial(UsageError, key=key, owner=owner)
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise refused(value=entries, allowed="use a tuple of 'CLIENT@STAGE'")
    departures, last = [], list(stages)[-1]
    for entry in entries:
        found = _ENTRY.fullmatch(entry) if isinstance(entry, str) else None
        client, percent, stage = found.groups() if found else (None, None, "")
        share = float(percent or 0) / 100
        if stage not in stages or share > 1:
            raise refused(
                value=entry,
                allowed=f"use 'CLIENT@STAGE' or 'SHARE%@STAGE', such as '3@{last}' or '20%@{last}', with "
                f"stages {', '.join(stages)}",
            )
        departures.append(Departure(None if client is None else int(client), share, stage))
    named = [departure.client for departure in departures if departure.client is not None]
    for client in named:
        if named.count(client) > 1:
            wrong = f"client {client} leaves at two stages"
            raise refused(wrong, value=tuple(entries), allowed="name it once")
    return departures


def check_departures(departures: Sequence[Departure], num_clients: int, key: str) -> None:
    """Raise a UsageError if a client that is to leave does not exist."""
    most = max((one.client for one in departures if one.client is not None), default=-1)
    if most >= num_clients:
        raise UsageError(
            f"client {most}: at most {num_clients - 1} of {num_clients} clients", key=key
        )
