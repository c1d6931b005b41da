"""Simulated client dropouts, by stage of a run.

    ("3@upload", "20%@setup")

Client 3 leaves before its upload, and one client in five before it has keys. Numbers are those of the
federation; an entry for a client outside a round's cohort has no effect. Shares are of the cohort, rounded.
The leaving clients are drawn with a seed, among those that stay so far. Each method defines its stages. For
any single message: `Presence`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from absl import logging

from jaxfed.errors import ProtocolError, UsageError

Action = Literal["send", "receive"]


class DroppedOut(Exception):
    """A client has left: the messages that it should have sent or received are lost.

    Attributes:
        client: its address.
    """

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} dropped out")
        self.client = client


class EndpointLeft(NamedTuple):
    """A planned departure: before `action` with messages of a kind, after `after` such actions."""

    action: Action
    kind: str
    after: int


class Presence:
    """Clients that have left, and for simulations planned departures."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self._planned: dict[int, EndpointLeft] = {}

    def lose(self, client: int) -> None:
        """Mark the client as gone from now on."""
        self.gone.add(client)

    def lose_when(self, client: int, action: Action, kind: str, *, after: int = 0) -> None:
        """Plan that the client leaves when it is to send or receive messages of this kind.

        Args:
            client: its address.
            action: "send" or "receive".
            kind: a kind, or its beginning.
            after: number of such messages that it still sends or receives.
        """
        self._planned[client] = EndpointLeft(action, kind, after)

    def act(self, party: int, action: Action, kind: str) -> None:
        """Register that a party is about to act.

        Raises:
            DroppedOut: it has left.
        """
        plan = self._planned.get(party)
        if plan and plan.action == action and kind.startswith(plan.kind):
            if plan.after == 0:
                self.lose(party)
            self._planned[party] = plan._replace(after=plan.after - 1)
        if party in self.gone:
            raise DroppedOut(party)

    def staying(self, clients: Iterable[int]) -> list[int]:
        """Those of the clients that have not left."""
        return [client for client in clients if client not in self.gone]

    @contextmanager
    def losing(self, sender: int) -> Iterator[None]:
        """Lose the client whose message the server refuses, as if it had left.

        Raises:
            DroppedOut: instead of a `ProtocolError`.
        """
        try:
            yield
        except ProtocolError as error:
            logging.warning("client %d is lost, its message is refused: %s", sender, error)
            self.lose(sender)
            raise DroppedOut(sender) from error


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
    departures = []
    for entry in entries:
        departure = _parsed(entry, stages)
        if departure is None:
            last = list(stages)[-1]
            raise refused(
                value=entry,
                allowed=f"use 'CLIENT@STAGE' or 'SHARE%@STAGE', such as '3@{last}' or '20%@{last}', with "
                f"stages {', '.join(stages)}",
            )
        departures.append(departure)
    named = [departure.client for departure in departures if departure.client is not None]
    for client in named:
        if named.count(client) > 1:
            wrong = f"client {client} leaves at two stages"
            raise refused(wrong, value=tuple(entries), allowed="name it once")
    return departures


def check_departures(departures: Sequence[Departure], num_clients: int, key: str) -> None:
    """Check that the clients that are to leave exist.

    Raises:
        UsageError: a client's number is too large.
    """
    most = max((one.client for one in departures if one.client is not None), default=-1)
    if most >= num_clients:
        raise UsageError(
            f"client {most}: at most {num_clients - 1} of {num_clients} clients", key=key
        )


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


def _parsed(entry: object, stages: Mapping[str, Stage]) -> Departure | None:
    """Parse one entry; None if it is no departure."""
    found = (
        re.fullmatch(r"(\d+)@(\w+)|(\d+(?:\.\d+)?)%@(\w+)", entry, re.ASCII)
        if isinstance(entry, str)
        else None
    )
    if not found:
        return None
    client, own_stage, share, shared_stage = found.groups()
    departure = Departure(
        None if client is None else int(client),
        float(share or 0) / 100,
        own_stage or shared_stage,
    )
    return departure if departure.stage in stages and departure.share <= 1 else None
