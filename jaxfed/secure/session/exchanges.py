"""Exchanges of a session as requests of `jaxfed.federation.algorithm`, and what a client keeps between them.

    request   terms     JSON: {"address": of the client in the session, "round", and what the method adds}
              message   a call message, bytes of `jaxfed.secure.session.remote_calls`
    reply     frames    its packed frames, and what the method adds

The first exchange is "join": the client draws 32 bytes from its operating system. A state in between serves
one step only (`once`): two continuations of it would seal two texts under one nonce. All messages of a
session have the same terms: other ones, as another seed of Pi, would put other codes under the same masks.
After the last exchange, "end", the client forgets these bytes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxfed.errors import ProtocolError
from jaxfed.federation.algorithm import Ask
from jaxfed.secure.session import remote_calls
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.remote_session import Carry
from jaxfed.secure.session.replayed_party import ReplayedParty

JOIN, END = "join", "end"
REQUEST, REPLY = {"terms": "", "message": b""}, {"frames": b""}
NO_SESSION = {"once": False, "round": 0, "seed": b"", "past": b"", "terms": ""}


def carried(
    ask: Ask,
    ids: Sequence[int],
    terms: Mapping[str, int],
    reply: Mapping[str, Any] = REPLY,
    check: Callable[[int, Any], None] = lambda client, reply: None,
) -> Carry:
    """Return what carries messages for a `RemoteSession`.

    Args:
        ask: reaches the clients.
        ids: the clients, by their addresses in the session.
        terms: numbers of the session that every client receives, "round" among them.
        reply: the form of a reply.
        check: as in `Ask`.
    """
    addresses = {client: address for address, client in enumerate(ids)}

    def carry(step: str, sent: Mapping[int, bytes]) -> Mapping[int, bytes]:
        requests = {
            ids[address]: {"terms": json.dumps({"address": address, **terms}), "message": message}
            for address, message in sent.items()
        }
        replies = ask(
            step, requests, reply, round_number=terms["round"], check=check, in_session=True
        )
        return {addresses[client]: answer["frames"] for client, answer in replies.items()}

    return carry


def terms_of(request: Mapping[str, Any], *names: str) -> list[int]:
    """Return the values of these terms.

    Raises:
        ProtocolError: one is missing or is no natural number.
    """
    try:
        numbers = json.loads(request["terms"])
        values = [numbers[name] for name in names]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ProtocolError("malformed terms of a session") from error
    if any(type(value) is not int or value < 0 for value in values):
        raise ProtocolError("malformed terms of a session")
    return values


def answered(
    step: str,
    state: Mapping[str, Any],
    request: Mapping[str, Any],
    party_of: Callable[[bytes], ReplayedParty],
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[dict[str, Any], bytes]:
    """Answer one call message: replay those before it, then take its steps.

    Args:
        step: name of the exchange.
        state: of the client; its "seed", "past" and "terms" are read.
        request: of the server: its terms and its call message.
        party_of: 32 bytes -> the client's party before its first message.
        random_bytes: source of these bytes.

    Returns:
        The fields of the client's new state but for "round", and the frames.

    Raises:
        ProtocolError: the client has not joined a session, or the message or its terms do not belong to it.
    """
    terms, message = request["terms"], request["message"]
    seed, past = state["seed"], remote_calls.parsed(state["past"])
    if past and terms != state["terms"]:
        raise ProtocolError("other terms than those of the session")
    if step == JOIN and not past:
        seed = random_bytes(32)
    elif not past:
        raise ProtocolError(f"step {step!r} without a session that this client has joined")
    party = party_of(seed)
    for before in past:
        party.play(before)
    frames = party.play(message)
    if step == END:
        return dict(NO_SESSION), frames
    kept = {
        "once": True,
        "seed": seed,
        "past": remote_calls.packed([*past, message]),
        "terms": terms,
    }
    return kept, frames
