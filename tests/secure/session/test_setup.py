"""Sessions: setup, who has which secret, and what is recorded."""

import pytest
from session_parties import (
    FRAME,
    KEYS,
    Wire,
    all_talk,
    clear,
    established,
    in_another_roster,
    refused,
    replayed,
    roster_of,
    state,
)

from jaxfed.errors import ProtocolError
from jaxfed.federation.communication import Communication
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Channel, Presence
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import Link
from jaxfed.secure.session.key_agreement import derived_key
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.setup import ClientSetup, ServerSetup, agree


@pytest.mark.parametrize("clients", [[0], [0, 1], [2, 0, 7]])
def test_everybody_reaches_everybody_after_setup(clients):
    all_talk(agree(clients, Channel())[0])


def test_sessions_are_fresh():
    one, other = Session(2), Session(2)
    for label in ("a", "b"):
        seeds = {s.endpoints[0].group_seed(label) for s in (one, other)}
        seeds |= {s.endpoints[0].pair_seed(1, label) for s in (one, other)}
        assert len(seeds) == 4
    assert one.endpoints[0].group_seed("a") != one.endpoints[0].group_seed("b")
    numbers = {
        framing.parsed(s.endpoints[0]._outgoing[1].sealed("x", b"")).header.session
        for s in (one, other)
    }
    assert len(numbers) == 2


def test_the_server_never_has_the_group_secret():
    """Nothing it receives or holds contains it, and no key it can derive opens a message with it."""
    wire = Wire()
    source = replayed(1)
    drawn = []
    ends, _ = agree([0, 1, 2], wire, lambda count: drawn.append(source(count)) or drawn[-1])
    secret = drawn[-1]
    assert derived_key(secret, ends[1]._session, "group seed", b"x") == ends[1].group_seed("x")
    assert not any(secret in message for message in wire.sent)
    assert not any(secret == held for held in leaves(state(ends[SERVER])))
    with pytest.raises(ProtocolError, match="no group secret"):
        ends[SERVER].group_seed("x")
    sealed = [m for m in wire.sent if framing.parsed(m).header.kind == "group"]
    assert len(sealed) == 2
    session, roster_hash = ends[SERVER]._session, ends[SERVER].roster_hash
    for message in sealed:
        header = framing.parsed(message).header
        for shared in ends[SERVER]._shared.values():
            for route in [(a, b) for a in range(-1, 3) for b in range(-1, 3)]:
                packed = b"".join(address.to_bytes(4, "big", signed=True) for address in route)
                key = derived_key(shared, session, "channel", packed, roster_hash)
                with pytest.raises(ProtocolError, match="did not seal"):
                    Link(key, session, header.sender, header.receiver).opened(message)


def leaves(held):
    if isinstance(held, dict):
        held = [*held.keys(), *held.values()]
    if isinstance(held, (list, set)):
        for part in held:
            yield from leaves(part)
    else:
        yield held


def bad_hellos(own):
    """(what it is about, public key)."""
    return [
        ("another party has", KEYS[0]),
        ("small order", bytes(32)),
        ("bytes", own[:31]),
        ("bytes", own + b"\0"),
        ("field", own[:31] + bytes([own[31] | 128])),
    ]


def test_bad_public_keys_never_reach_the_others():
    wire = Wire()
    server = ServerSetup(wire)
    server.invite(0)
    header = framing.parsed(wire.receive(SERVER, 0)).header
    wire.send(clear(header.session, 0, SERVER, "hello", KEYS[0]))
    server.accept(0)
    for number, (about, key) in enumerate(bad_hellos(KEYS[1])):
        before = state(server)
        wire.send(clear(header.session, 1, SERVER, "hello", key))
        with pytest.raises(ProtocolError, match=about):
            server.accept(1)
        assert state(server) == before, number
    wire.send(clear(header.session, 0, SERVER, "hello", KEYS[2]))
    with pytest.raises(ProtocolError, match="client 0 is there twice"):
        server.accept(0)
    wire.send(clear(header.session, 1, SERVER, "hello", KEYS[1]))
    server.accept(1)
    assert sorted(server.finished()._shared) == [0, 1]


def bad_rosters(own):
    """(what it is about, roster) for client 1 with this public key."""
    server, other, third = KEYS[:3]
    return [
        ("without client 1's key", roster_of(server, (0, other))),
        ("without client 1's key", roster_of(server, (0, other), (1, third))),
        ("ascending", roster_of(server, (1, own), (0, other))),
        ("ascending", roster_of(server, (1, own), (1, other))),
        ("ascending", roster_of(server, (1, own), (1, own))),
        ("ascending", roster_of(server, (-1, other), (1, own))),
        ("same key", roster_of(server, (0, own), (1, own))),
        ("same key", roster_of(own, (0, other), (1, own))),
        ("same key", roster_of(server, (0, server), (1, own))),
        ("small order", roster_of(bytes(32), (0, other), (1, own))),
        ("small order", roster_of(server, (0, bytes(32)), (1, own))),
        ("field", roster_of(server, (0, b"\xff" * 32), (1, own))),
        ("32 \\+ 36 p", server),
        ("32 \\+ 36 p", b""),
        ("32 \\+ 36 p", roster_of(server, (1, own))[:-1]),
        ("32 \\+ 36 p", roster_of(server, (1, own)) + b"\0"),
    ]


def test_rosters_that_are_refused():
    wire = Wire()
    client, server = ClientSetup(1, wire), ServerSetup(wire)
    server.invite(1)
    client.join()
    header, _, body = framing.parsed(wire.receive(1, SERVER))
    for about, roster in bad_rosters(bytes(body)):
        forged = clear(header.session, SERVER, 1, "roster", roster)
        refused(wire, client, client.agree, forged)
        wire.forged.append(forged)
        with pytest.raises(ProtocolError, match=about):
            client.agree()
    wire.send(clear(header.session, 1, SERVER, "hello", bytes(body)))
    server.accept(1)
    server.send_roster(1)
    client.agree()
    client.give_group_secret()
    all_talk({SERVER: server.finished(), 1: client.finished()})


def test_who_was_shown_different_rosters_shares_no_key():
    with pytest.raises(ProtocolError, match="did not seal"):
        in_another_roster(Wire())


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("receive", "invite"),
        ("send", "hello"),
        ("receive", "roster"),
        ("send", "group"),
        ("receive", "group"),
    ],
)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_client_that_leaves_during_setup_is_no_part_of_the_session(client, action, kind):
    presence = Presence()
    presence.lose_when(client, action, kind)
    session = Session(3, presence=presence)
    never_acts = kind == "group" and (action == "send") != (client == 0)  # 0 gives, others take
    stayed = [c for c in range(3) if never_acts or c != client]
    assert session.clients == stayed
    assert session.endpoints.keys() == {SERVER, *stayed}
    all_talk(session.endpoints)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_setup_has_the_bytes_that_its_table_says(p):
    """Kinds without what follows a slash; what clients send each other goes up and down."""
    session = Session(p)
    session.endpoints[0].send(SERVER, "up/0/1", b"12345")
    communication = session.communication()
    clear = FRAME - 16
    assert communication.upload == {
        "hello": 32 * p,
        **({"group": 32 * (p - 1)} if p > 1 else {}),
        "up": 5,
        "framing": p * (clear + 5) + (p - 1) * (FRAME + 5) + FRAME + 6,
    }
    assert communication.download == {
        "invite": 0,
        "roster": p * (32 + 36 * p),
        **({"group": 32 * (p - 1)} if p > 1 else {}),
        "framing": p * (clear + 6) + p * (clear + 6) + (p - 1) * (FRAME + 5),
    }


def test_bytes_on_the_wire_are_those_counted():
    wire, ends = established()
    all_talk(ends)
    counted = Communication()
    wire.count(counted)
    ups, downs = (
        sum(len(m) for m in wire.sent if getattr(framing.parsed(m).header, end) != SERVER)
        for end in ("sender", "receiver")
    )
    assert sum(counted.upload.values()) == ups
    assert sum(counted.download.values()) == downs
