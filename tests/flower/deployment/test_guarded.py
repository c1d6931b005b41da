"""Who may use a SuperLink's interfaces: nodes by /v1/fleet, and for all else the user who started it."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from jaxfed.flower.deployment import guarded

OWN, STRANGER = "192.0.2.1", "192.0.2.9"


@pytest.fixture
def connection():
    """Both ends of a connection to a server of this process: (address of the client, of the server)."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        yield client.getsockname(), server.getsockname()


def asked(path, client, server, open_paths=("/v1/fleet/",), kind="http"):
    """Status that a request gets; 200 comes from the guarded app."""
    sent = []

    async def app(scope, receive, send):
        sent.append({"status": 200})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "server": server}
    asyncio.run(guarded.OwnUserOnly(app, open_paths)(scope, None, send))
    return sent[0]["status"] if sent else None


def test_a_node_hears_why_it_is_not_activated():
    """By Flower's own handler, which has one public text for both."""
    pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
    import httpx
    from fastapi import FastAPI
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.server.superlink.linkstate import InMemoryLinkState
    from flwr.supercore.error import FlowerError
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.servicer.fleet.fleet_handlers import activate_node

    state = InMemoryLinkState(SimpleNamespace(), ObjectStoreFactory().store())
    state.create_node("owner", "owner", b"known", 30)

    app = FastAPI()

    @app.post("/v1/fleet/activate")
    def activate(key: str):
        activate_node(ActivateNodeRequest(public_key=key.encode(), heartbeat_interval=30), state)

    guard = guarded.guard(app, ("/v1/fleet/",))

    async def status(path):
        transport = httpx.ASGITransport(app=guard, client=(STRANGER, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as node:
            return (await node.post(path)).status_code

    assert asyncio.run(status("/v1/fleet/activate?key=known")) == 200
    assert asyncio.run(status("/v1/control/x")) == 403
    for key, reason in (("unknown", guarded.UNKNOWN_KEY), ("known", guarded.KEY_IN_USE)):
        with pytest.raises(FlowerError) as raised:
            asyncio.run(status(f"/v1/fleet/activate?key={key}"))
        assert raised.value.public_details == reason


def test_a_stranger_uses_the_fleet_alone():
    ends = (STRANGER, 4711), (OWN, 8000)
    assert asked("/v1/fleet/pull-messages", *ends) == 200
    for path in ("/v1/control/start-run", "/v1/runtime/x", "/docs", "/v1/fleetx", "/v1/fleet"):
        assert asked(path, *ends) == 403
    assert asked("/v1/fleet/x", *ends, open_paths=()) == 403  # of a SuperNode nothing is open
    assert asked("/v1/control/x", *ends, kind="websocket") is None
    assert asked("", None, None, kind="lifespan") == 200


def test_the_user_who_started_it_uses_all(connection):
    assert asked("/v1/control/start-run", *connection) == 200


@pytest.mark.parametrize(("user", "status"), [(None, 200), (0, 200), (4243, 403)])
def test_another_user_of_the_same_machine_is_refused(connection, monkeypatch, user, status):
    """By the owner in the system's table of connections: this user's and the superuser's pass."""
    monkeypatch.setattr(guarded.os, "getuid", lambda: 4242)
    client, server = ((guarded._address(host), port) for host, port in connection)
    table = [(server, client, 4242), (client, server, 4242 if user is None else user)]
    monkeypatch.setattr(guarded, "_connections", lambda place: iter(table))
    assert asked("/v1/control/start-run", *connection) == status


def test_a_connection_that_nobody_has_is_refused(connection, tmp_path, monkeypatch):
    (client, _), server = connection
    assert asked("/v1/control/start-run", (client, 1), server) == 403
    assert asked("/v1/control/start-run", None, server) == 403
    assert asked("/v1/control/start-run", ("unix", 0), server) == 403
    monkeypatch.setattr(guarded, "_TABLES", (tmp_path / "none",))  # a system without such tables
    assert asked("/v1/control/start-run", (client, 1), server) == 200
    assert asked("/v1/control/start-run", (STRANGER, 1), server) == 403


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("0100007F:1F90", ("127.0.0.1", 8080)),
        ("00000000000000000000000001000000:0050", ("::1", 80)),
        ("0000000000000000FFFF00000100007F:0050", ("127.0.0.1", 80)),
    ],
)
def test_ends_of_the_tables_of_little_endian_machines(text, end):
    if guarded.sys.byteorder == "big":
        pytest.skip("the same words mean other addresses")
    address, port = guarded._end(text)
    assert (str(address), port) == end
