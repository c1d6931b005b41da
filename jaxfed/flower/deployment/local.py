"""A federation of processes on this machine: one SuperLink, and a SuperNode for each client's folder.

    with Local(folder, clients, say=print) as local:
        local.start()
        status = local.run(app, {"workdir": "..."})

Connections are encrypted and nodes prove who they are by their keys, as between machines. All processes end
with the block (`jaxfed.flower.deployment.processes`). What Flower would do by itself and must not is
switched off: telemetry, the update check, installation of an app's dependencies.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from jaxfed.errors import UsageError
from jaxfed.flower.deployment import certificates, executor
from jaxfed.flower.deployment.control import (
    Control,
    Controls,
    RunSettings,
    Status,
    loopback_without_proxy,
)
from jaxfed.flower.deployment.following import follow, wait_for_link
from jaxfed.flower.deployment.processes import DeploymentError, Processes, Started

Say = Callable[[str], None]
Connect = Callable[[str, Path | None], Controls]

HERE = "127.0.0.1"
HOMES = "homes"  # folders of Flower's own files
_ROOT = Path(__file__).parents[3]
_POLL_SECONDS = 0.2
_BETWEEN_LINES = 15.0  # seconds between lines on who is missing
_MOST_TRIES = 3  # of free ports, which another process may take first


class Programs(NamedTuple):
    """Commands that start a SuperLink and a SuperNode; arguments follow."""

    superlink: tuple[str, ...]
    supernode: tuple[str, ...]


PROGRAMS = Programs(
    (sys.executable, "-m", "jaxfed.flower.deployment.guarded", "superlink"),
    (sys.executable, "-m", "jaxfed.flower.deployment.guarded", "supernode"),
)
PLAIN_PROGRAMS = Programs(
    ("flower-superlink",), ("flower-supernode",)
)  # as Flower's users start them


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds to wait: until the SuperLink answers, and until all nodes are online."""

    link: float = 120.0
    nodes: float = 300.0


class Server(NamedTuple):
    """Address of a SuperLink, and its keys.

    Nodes and runs are in memory only. Flower creates its database in many steps, cannot continue from an
    incomplete one, and would restart the rest of a killed run. Nodes reconnect by `commands.take_part`.

    Fields:
        host: address to listen at.
        port: of all its interfaces.
        authority: certificate authority of the federation; None for connections without encryption.
        certificate: the server's own.
    """

    host: str
    port: int
    authority: certificates.Pair | None = None
    certificate: certificates.Pair | None = None

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command that starts it."""
        found = [*program, "--host", self.host, "--port", str(self.port)]
        found.append("--disable-runtime-dependency-installation")
        if self.authority is None or self.certificate is None:
            return [*found, "--insecure"]
        found += ["--ssl-ca-certfile", str(self.authority.public)]
        found += ["--ssl-certfile", str(self.certificate.public)]
        found += ["--ssl-keyfile", str(self.certificate.private), "--enable-supernode-auth"]
        return found

    @property
    def address_here(self) -> str:
        """HOST:PORT by which this machine reaches it."""
        host = {"0.0.0.0": HERE, "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def node_command(
    program: Sequence[str],
    data: Path,
    server: str,
    *,
    port: int,
    root_certificate: Path | None,
    key: Path | None,
) -> list[str]:
    """Return the command that starts a client's node.

    Args:
        program: see `Programs`.
        data: the client's folder.
        server: HOST:PORT of the SuperLink.
        port: of this node's own interface for its processes, on loopback.
        root_certificate: of the server's authority; None for connections without encryption.
        key: the node's private key; None without encryption.

    Raises:
        UsageError: a folder that Flower's command line cannot name.
    """
    if {*'"\\\n'} & {*str(data)}:
        raise UsageError(
            f"{data}: Flower cannot be given a folder with a quote or backslash in its name"
        )
    found = [*program, "--superlink", server, "--host", HERE, "--port", str(port)]
    found += ["--node-config", f'data="{data}"']
    if root_certificate is None:
        return [*found, "--insecure"]
    found += ["--root-certificates", str(root_certificate)]
    return found + ([] if key is None else ["--auth-supernode-private-key", str(key)])


def environment(home: Path, programs_cache: Path | None, kind: str | None) -> dict[str, str]:
    """Return the environment of a SuperLink or a SuperNode.

    Args:
        home: Flower's folder for this process alone; nodes that share one overwrite each other's apps. Apps
            of an earlier process, which may be incomplete, are deleted there. The program that starts
            processes for messages (`jaxfed.flower.deployment.executor`) is written there.
        programs_cache: folder of compiled programs; each message to a client is a new process, which would
            compile everything anew.
        kind: "superlink" or "supernode"; None for processes that start as Flower starts them.
    """
    found = dict(os.environ)
    own_programs = home / "bin"
    shutil.rmtree(home / "apps", ignore_errors=True)
    if sys.platform == "linux" and kind is not None:
        executor.write_script(own_programs, kind)
    found |= {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PYTHONUNBUFFERED": "1",
        # Flower starts its other programs by name, and apps import jaxfed from another folder.
        "PATH": os.pathsep.join(
            [str(own_programs), str(Path(sys.executable).parent), found.get("PATH", "")]
        ),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), found.get("PYTHONPATH", "")])),
    }
    # Clients on one machine share its accelerator; JAX would give most of it to the first one.
    found.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    loopback_without_proxy(found)
    if programs_cache is not None:
        found["JAX_COMPILATION_CACHE_DIR"] = str(programs_cache)
        found["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return found


def free_ports(number: int) -> list[int]:
    """Return different ports of loopback that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(number)]
        for each in sockets:
            each.bind((HERE, 0))
        return [each.getsockname()[1] for each in sockets]


class Local:
    """A federation on this machine; see the module.

    Attributes:
        processes: of the SuperLink, "link", and of the nodes, "node-0", "node-1", ...
    """

    def __init__(
        self,
        folder: Path,
        clients: Sequence[Path],
        *,
        encrypted: bool = True,
        programs_cache: Path | None = None,
        limits: Limits = Limits(),
        programs: Programs = PROGRAMS,
        connect: Connect = Control,
        say: Say = print,
    ) -> None:
        """Prepare it.

        Args:
            folder: gets keys/, logs/ and homes/, all for this user alone.
            clients: each client's folder (`jaxfed.flower.client.client_data`).
            encrypted: False for connections without TLS and keys.
            programs_cache: folder of compiled programs, shared by all clients; None for none.
            limits: how long to wait.
            programs: what to start.
            connect: makes the control of a SuperLink, from its address and its root certificate.
            say: receives lines on what happens.
        """
        self.processes = Processes(folder.absolute())
        self._folder, self._clients = folder.absolute(), [path.absolute() for path in clients]
        self._encrypted, self._cache = encrypted, programs_cache
        self._limits, self._programs, self._connect, self._say = limits, programs, connect, say
        self._control: Controls | None = None
        self._nodes: dict[int, str] = {}

    def __enter__(self) -> Self:
        self.processes.__enter__()
        if left := self.processes.left_behind:
            self._say(f"ended {left} processes that an earlier start had left behind")
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._control is not None:
                with suppress(DeploymentError):
                    self._control.close()
        finally:
            self.processes.__exit__(exception_type, exception, traceback)

    def start(self) -> None:
        """Start SuperLink and nodes, and return when all nodes are online.

        Raises:
            DeploymentError: one of them ended, or did not get ready in time.
        """
        server, control = self._start_link()
        root = None if server.authority is None else server.authority.public
        ports = free_ports(len(self._clients))
        for number, (client, port) in enumerate(zip(self._clients, ports, strict=True)):
            name = f"node-{number}"
            key = None
            if root is not None:
                pair = certificates.make_node_key(self._folder / "keys" / f"{name}.key")
                key = pair.private
                self._nodes[control.register(pair.public)] = name
            command = node_command(
                self._programs.supernode,
                client,
                server.address_here,
                port=port,
                root_certificate=root,
                key=key,
            )
            self._start(name, command)
        self._wait_for_nodes(control)

    def run(
        self, app: Path, settings: RunSettings, *, at_each_poll: Callable[[], None] = lambda: None
    ) -> Status:
        """Run an app to its end.

        Args:
            app: folder of the app.
            settings: its run config.
            at_each_poll: called several times a second while it runs.

        Returns:
            The run's last status.

        Raises:
            DeploymentError: the SuperLink ended.
        """
        assert self._control is not None  # started
        return follow(
            self._control,
            self._control.submit(app, settings),
            self.processes,
            say=self._say,
            at_each_poll=at_each_poll,
        )

    def _start_link(self) -> tuple[Server, Controls]:
        for tries_left in reversed(range(_MOST_TRIES)):
            server = self._server(free_ports(1)[0])
            link = self._start("link", server.command(self._programs.superlink))
            root = None if server.authority is None else server.authority.public
            self._control = self._connect(server.address_here, root)
            try:
                wait_for_link(self._control, self.processes, self._limits.link)
                return server, self._control
            except DeploymentError:
                taken = "address already in use" in link.log.read_text(errors="replace").lower()
                if not taken or not tries_left:
                    raise
        raise AssertionError

    def _server(self, port: int) -> Server:
        if not self._encrypted:
            return Server(HERE, port)
        keys = self._folder / "keys"
        authority = certificates.make_authority(keys)
        own = certificates.make_server_certificate(authority, keys, [])
        return Server(HERE, port, authority, own)

    def _start(self, name: str, command: Sequence[str]) -> Started:
        home = self._folder / HOMES / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        kind = None
        if self._programs != PLAIN_PROGRAMS:
            kind = "superlink" if name == "link" else "supernode"
        return self.processes.start(name, command, environment=environment(home, self._cache, kind))

    def _wait_for_nodes(self, control: Controls) -> None:
        began = time.monotonic()
        next_line = began + _BETWEEN_LINES
        while True:
            online = control.online()
            number = len(online & self._nodes.keys()) if self._nodes else len(online)
            if number >= len(self._clients):
                self._say(f"{number} node{'s are' if number != 1 else ' is'} online")
                return
            for number in range(len(self._clients)):
                self.processes.check(f"node-{number}")
            self.processes.check("link")
            waited = time.monotonic() - began
            missing = [name for node, name in self._nodes.items() if node not in online]
            lacking = len(self._clients) - len(online)
            who = ", ".join(missing) or f"{lacking} node{'s' * (lacking != 1)}"
            if waited > self._limits.nodes:
                raise DeploymentError(
                    f"{who} not online after {waited:.0f} s; see {self._folder / 'logs'}"
                )
            if time.monotonic() > next_line:
                self._say(f"waiting for {who} since {waited:.0f} s")
                next_line += _BETWEEN_LINES
            time.sleep(_POLL_SECONDS)
