"""Flower's SuperLink or SuperNode with its control kept to the user who started it.

    python -m jaxfed.flower.deployment.guarded superlink|supernode ARGUMENTS

The arguments are those of flower-superlink or flower-supernode.

Flower serves three interfaces at one port, and asks for an account at none. Clients' nodes use /v1/fleet,
where TLS and the nodes' keys decide. Whoever reaches /v1/control may register nodes and start any code on all
of them. /v1/runtime serves the processes that run this code. Here only /v1/fleet of a SuperLink is open; all
else answers processes of the same user on the same machine. (Where the system does not say whose a connection
is, as on macOS: any process on the same machine.)

Flower raises one error for an unregistered key and for a key whose node is online. Here the node receives the
reason; only the owner of the key can ask for it.

The process ends within a second after the process whose number is in $JAXFED_FLOWER_PARENT.
"""

from __future__ import annotations

import ipaddress
import os
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxfed.flower.deployment import waits
from jaxfed.host.interruption import end_with

PARENT = "JAXFED_FLOWER_PARENT"
_MODULES = {
    "superlink": ("flwr.superlink.main", "flwr.superlink.cli.flower_superlink", ("/v1/fleet/",)),
    "supernode": ("flwr.supernode.main", "flwr.supernode.cli.flower_supernode", ()),
}
UNKNOWN_KEY = "the server does not know this key"
KEY_IN_USE = "a node is connected with this key, or was until a minute ago"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Address = tuple[str, int]


class OwnUserOnly:
    """ASGI middleware that answers 403 to strangers, except at some paths."""

    def __init__(self, app: App, open_paths: tuple[str, ...] = ()) -> None:
        self._app, self._open_paths = app, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        is_request = scope["type"] in ("http", "websocket")
        is_open = is_request and str(scope["path"]).startswith(self._open_paths or ("\0",))
        if not is_request or is_open or is_own_user(scope.get("client"), scope.get("server")):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"only for the user who started it"})


def is_own_user(client: Address | None, server: Address | None) -> bool:
    """True for a connection from this machine, by a process of this process's user or the superuser's."""
    if client is None or server is None:
        return False
    try:
        here, there = _address(server[0]), _address(client[0])
    except ValueError:
        return False
    if not there.is_loopback and there != here:
        return False
    tables = [table for table in _TABLES if table.exists()]
    if not tables:
        return True
    ends = (there, client[1]), (here, server[1])
    owners = (
        user for table in tables for *found, user in _connections(table) if tuple(found) == ends
    )
    return next(owners, None) in (0, os.getuid())


def guard(app: Any, open_paths: tuple[str, ...]) -> Any:
    """Restrict an app of Flower to its own user, let it send reasons of refusals, and return it."""
    from flwr.supercore.error import FlowerError

    app.add_middleware(OwnUserOnly, open_paths=open_paths)
    app.add_exception_handler(FlowerError, _with_reason)
    return app


async def _with_reason(request: Any, error: Any) -> Any:
    """Raise an error of Flower again, with the reason why a node was not activated."""
    from flwr.supercore.error import ApiErrorCode

    if error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        is_unknown = "No SuperNode found" in error.message
        error.public_details = UNKNOWN_KEY if is_unknown else KEY_IN_USE
    raise error


IP = ipaddress.IPv4Address | ipaddress.IPv6Address
End = tuple[IP, int]


def _connections(table: Path) -> Iterator[tuple[End, End, int]]:
    """Yield both ends of the connections of a table of Linux, and their users."""
    for line in table.read_text().splitlines()[1:]:
        words = line.split()
        yield _end(words[1]), _end(words[2]), int(words[7])


def _end(text: str) -> End:
    """Parse `0100007F:1F90`: an address in words of 32 bits of the machine's order, and a port."""
    address, _, port = text.partition(":")
    words = [int(address[place : place + 8], 16) for place in range(0, len(address), 8)]
    return _address(struct.pack(f"={len(words)}I", *words)), int(port, 16)


def _address(given: str | bytes) -> IP:
    """Parse an address; one of IPv4 in the form of IPv6 becomes that of IPv4."""
    found = ipaddress.ip_address(given)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def main() -> None:
    """Start the program that the first argument names, with the others."""
    if parent := os.environ.get(PARENT):
        end_with(int(parent))
    os.environ["FORWARDED_ALLOW_IPS"] = ""  # nobody may say that a request is another's
    kind = sys.argv.pop(1)
    serving, entry, open_paths = _MODULES[kind]
    if kind == "supernode":
        waits.shorten_node()
    module = import_module(serving)
    make = module.create_app

    def create_app(*arguments: Any, **keywords: Any) -> Any:
        return guard(make(*arguments, **keywords), open_paths)

    module.create_app = create_app  # type: ignore[attr-defined]
    name = entry.rpartition(".")[2]
    sys.argv[0] = name.replace("_", "-")
    getattr(import_module(entry), name)()


if __name__ == "__main__":
    main()
