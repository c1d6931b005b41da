"""Clients of a run: which node is which client, and which nodes are refused, in one line each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from absl import logging

from jaxfed.flower.client import client_run
from jaxfed.flower.client.client_run import FORM, REGISTRATION, SETUP, Registration
from jaxfed.flower.messages import records
from jaxfed.flower.messages.setup import Form, Setup
from jaxfed.flower.server.exchange import Exchange

_MOST_NAMED = 10  # clients in a line
_POLL = 0.5  # seconds


@dataclass
class Clients:
    """The clients that have been found.

    Attributes:
        exchange: asks nodes, whose numbers here are their indices in a sorted list.
        setup: as far as it is known before the registrations.
        form: of examples; a client that has another one refuses.
        nodes: the node of each admitted client.
        refused: the other nodes that were asked, with the reason.
        is_wrong: a node has refused: it has other versions, examples or data, or has failed.
    """

    exchange: Exchange
    setup: Setup
    form: Form
    nodes: dict[int, int] = field(default_factory=dict)
    registrations: dict[int, Registration] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    is_wrong: bool = False

    def gather(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Admit each node when it connects, until all clients are here, one is wrong, or time is over.

        A node that is none of the clients (one that is gone but still listed, one of another run) ends no
        wait. `tell` receives a line that names the missing clients, whenever they change.
        """
        began, line = self.exchange.clock(), ""
        while True:
            connected = set(self.exchange.network.nodes())
            if new := connected - {*self.nodes.values(), *self.refused}:
                self.admit(new)
            left = began + seconds - self.exchange.clock()
            if len(self.nodes) == self.setup.num_clients or self.is_wrong or left <= 0:
                return
            waiting = f"waiting for clients {self.missing()} of {self.setup.num_clients}"
            if waiting != line:
                tell(line := waiting)
            self.exchange.sleep(min(_POLL, left))

    def missing(self) -> str:
        """Name the clients that are not here, such as `1, 2`; "" if all are."""
        left = [str(each) for each in range(self.setup.num_clients) if each not in self.nodes]
        more = f" and {len(left) - _MOST_NAMED} more" * (len(left) > _MOST_NAMED)
        return ", ".join(left[:_MOST_NAMED]) + more

    def admit(self, nodes: Collection[int]) -> None:
        """Ask nodes who they are, and check what they say; the first node that has a number keeps it."""
        self.exchange.nodes = asked = dict(enumerate(sorted(nodes)))
        message = records.prefixed(records.packed(self.setup), SETUP)
        message |= records.prefixed(records.packed(self.form), FORM)
        answers = self.exchange.ask(
            REGISTRATION,
            dict.fromkeys(asked, message),
            round=0,
            read=lambda index, reply: client_run.from_record(reply, self.form.shape),
            continues=False,
        )
        refused = {asked[index]: lost.reason for index, lost in answers.lost.items()}
        self.is_wrong |= any(lost.kind for lost in answers.lost.values())
        for index, received in answers.replies.items():
            if received.client >= self.setup.num_clients:
                refused[asked[index]] = f"there is no client number {received.client}"
            elif (holder := self.nodes.setdefault(received.client, asked[index])) != asked[index]:
                refused[asked[index]] = f"client number {received.client} is that of node {holder}"
            else:
                self.registrations[received.client] = received
        for node, reason in sorted(refused.items()):
            logging.warning("refused node %d: %s", node, reason)
        self.refused |= refused
