"""A client of a session over a network: a function of 32 random bytes and the messages that it received.

    party = ReplayedParty(address, seed, roles)
    for message in past: party.play(message)    # the same frames as then, which are not sent again
    frames = party.play(message)                # to be sent

Nothing else is stored between two messages. Whoever plays a party must answer each message once: two
after the same past would seal two texts under one nonce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.prg import replayable_bytes
from jaxfed.secure.session import remote_calls
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.party_endpoint import PartyEndpoint
from jaxfed.secure.session.remote_calls import SETUP, Call
from jaxfed.secure.session.setup import ClientSetup

_SETUP_STEPS = ("join", "agree", "give_group_secret", "finished")
_SPARSE = "agree_with_neighbors"  # instead of all after "join"


class Role(NamedTuple):
    """A kind of object that a client lets the server use, once in a session.

    Fields:
        constructor: (endpoint, client_input, random_bytes=, **plan) -> the object.
        client_input: a party -> its input, which the server does not have.
        steps: the methods that may be called.
        plan: names of the arguments that the server gives.
    """

    constructor: Callable[..., Any]
    client_input: Callable[[ReplayedParty], Any]
    steps: frozenset[str]
    plan: frozenset[str]


class ReplayedParty:
    """A client during one session.

    Args:
        address: its address.
        seed: 32 bytes of the operating system's generator, used for this session alone.
        roles: the objects that it has, by name.
        may_be_sparse: take part in a session in which it has keys of a few neighbors.

    Attributes:
        endpoint: its end of the session, after setup.
        results: what steps returned last, by (role, step).
    """

    def __init__(
        self, address: int, seed: bytes, roles: Mapping[str, Role], *, may_be_sparse: bool = False
    ) -> None:
        self._address, self._roles, self._may_be_sparse = address, roles, may_be_sparse
        self._channel, self._random_bytes = Channel.of_party(address), replayable_bytes(seed)
        self._objects: dict[int, tuple[str, Any]] = {}
        self._left: dict[int, list[str]] = {}  # steps of each setup, each of which is taken once
        self.endpoint: PartyEndpoint | None = None
        self.results: dict[tuple[str, str], Any] = {}

    def play(self, message: bytes) -> bytes:
        """Take the message's steps; returns the frames that are to be sent, packed.

        Raises:
            ProtocolError: a malformed message, an unknown role or step, or an unexpected message.
        """
        calls, frames = remote_calls.parsed_call_message(message)
        self._channel.feed(frames)
        for call in calls:
            self._take(call)
        return remote_calls.packed(self._channel.emptied())

    def _take(self, call: Call) -> None:
        if call.number not in self._objects:
            self._objects[call.number] = call.role, self._made(call)
        role, instance = self._objects[call.number]
        left = self._left.setdefault(call.number, list(_SETUP_STEPS)) if role == SETUP else []
        if self._may_be_sparse and call.step == _SPARSE and left[:1] == ["agree"]:
            left[:] = [_SPARSE]
        steps = left[:1] if role == SETUP else self._roles[role].steps
        if role != call.role or call.step not in steps:
            raise ProtocolError(f"step {call.step!r} of {call.role!r} is not one of this client's")
        del left[:1]  # agreeing twice would number messages from 0 again, under the same keys
        result = getattr(instance, call.step)(*call.arguments)
        if hasattr(result, "__next__"):
            for _ in result:
                pass
            return
        if role == SETUP and not left:
            self.endpoint = result
        self.results[role, call.step] = result

    def _made(self, call: Call) -> Any:
        """Make an object.

        Raises:
            ProtocolError: the role is unknown or was used before, or its plan is not what was agreed.
        """
        if call.role == SETUP:
            if self.endpoint is not None:
                raise ProtocolError("a second setup in one session")
            return ClientSetup(self._address, self._channel, random_bytes=self._random_bytes)
        role = self._roles.get(call.role)
        used = {name for name, _ in self._objects.values()}
        if role is None or self.endpoint is None or call.role in used:
            raise ProtocolError(f"{call.role!r} is not to be used now")
        if call.plan.keys() != role.plan:
            raise ProtocolError(f"a plan of {sorted(call.plan)} for {call.role!r}")
        if any(SERVER in value for value in call.plan.values() if isinstance(value, dict)):
            raise ProtocolError("a plan that gives rows to the server")
        return role.constructor(
            self.endpoint, role.client_input(self), random_bytes=self._random_bytes, **call.plan
        )
