"""Flower's own commands as processes of this one: flower-superlink, flower-supernode, flwr.

    with SuperLink(network, Address(host, port), say=print) as link:    # $ flower-superlink ...
        link.register(public_key)                                       # $ flwr supernode register ...
        link.run(app, {"workdir": "..."})                               # $ flwr run ... --stream

Nothing of Flower is imported or changed here: each command is printed as a user would type it. What
Flower would do by itself and must not is switched off by its own variables and flags: telemetry, the update
check, installation of an app's dependencies.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Self

from jaxfed.errors import UsageError
from jaxfed.flower.client.client_data import PRIVATE_FILE, PRIVATE_FOLDER, write_private
from jaxfed.flower.deployment import certificates

Say = Callable[[str], None]
RunSettings = Mapping[str, str | int | float | bool]

HERE = "127.0.0.1"
LOGS = "logs"
_REQUIREMENTS = "requirements-flower.txt"
_ROOT = Path(__file__).parents[3]
_NAME = "jaxfed"  # of the SuperLink in Flower's config.toml
_OWN_VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
_LINK_SECONDS = 120.0  # until a SuperLink answers
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 5.0  # for a process to end after SIGTERM
# Linux ends a process that began like this with the one that started it, however that ended.
_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OF_FLOWER = re.compile(r"(INFO|DEBUG) *:|Successfully (installed|started) |Starting logstream")
_RAISED = "ServerApp raised an exception"
_FOR_USERS = re.compile(
    r"jaxfed\.(?:\w+\.)+(?:UsageError|Unresumable|BeyondMemory|TooFewClients|UnusableModel): (.*)"
)


class DeploymentError(RuntimeError):
    """A failure of a running federation, in one line; the input may be right."""


def check_flower() -> None:
    """Check that Flower is installed."""
    if find_spec("flwr") is None:
        raise UsageError(f"Flower is missing; pip install -r {_REQUIREMENTS}")


class Address(NamedTuple):
    """Address of a SuperLink, and the folder of its certificates."""

    host: str
    port: int
    certificates: Path

    @property
    def here(self) -> str:
        """HOST:PORT by which this machine reaches it."""
        host = {"0.0.0.0": HERE, "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def root(self) -> Path:
        """The certificate by which clients know it."""
        return self.certificates / certificates.ROOT


def environment(home: Path) -> dict[str, str]:
    """Return the variables of Flower's commands, whose own files go into `home`.

    Apps of an earlier process are deleted there: Flower takes an incomplete one for whole.
    """
    home.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    shutil.rmtree(home / "apps", ignore_errors=True)
    found = os.environ | _OWN_VARIABLES | {"FLWR_HOME": str(home)}
    # Flower starts its other programs by name, and apps import jaxfed from another folder.
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", _ROOT)):
        found[name] = os.pathsep.join(filter(None, [str(first), found.get(name, "")]))
    for name in ("NO_PROXY", "no_proxy"):  # whatever proxy there is for others
        found[name] = ",".join(filter(None, [found.get(name, ""), HERE, "localhost", "::1"]))
    return found


def start(
    command: Sequence[str], variables: Mapping[str, str], log: Path | int | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own.

    Its output goes to a file, to `subprocess.PIPE`, or where that of this process goes.

    Call it from the main thread. On Linux the process ends with this one, however this one ends.
    """
    output: int | None
    if not isinstance(log, Path):
        output = log
    else:
        log.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, PRIVATE_FILE)
    own = [sys.executable, "-S", "-c", _WITH_PARENT] if sys.platform == "linux" else []
    try:
        return subprocess.Popen(
            [*own, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=variables,
            start_new_session=True,
            umask=0o077,
        )
    except OSError as error:
        raise DeploymentError(f"{command[0]}: {error.strerror}") from error
    finally:
        if isinstance(log, Path) and output is not None:
            os.close(output)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of `start` and its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with closing(socket.socket()) as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


def node_command(server: str, config: str, *, root: Path, key: Path) -> list[str]:
    """Return the command of a client's SuperNode; `config`, in TOML, is for its ClientApps."""
    found = ["flower-supernode", "--superlink", server, "--port", str(free_port())]
    found += ["--node-config", config, "--root-certificates", str(root)]
    return [*found, "--auth-supernode-private-key", str(key)]


class SuperLink:
    """A SuperLink of this process, while it is entered.

    Nodes and runs are in its memory only: with a database it would restart the rest of a killed run, and it
    cannot continue from one that is incomplete. Clients connect again by themselves.
    """

    def __init__(self, network: Path, address: Address, *, say: Say = print) -> None:
        """Prepare it; `network` gets its log and Flower's own files."""
        self._network, self._address, self._say = network.absolute(), address, say
        self._log = self._network / LOGS / "superlink.log"

    def __enter__(self) -> Self:
        """Start it, and return when it answers."""
        host, port, folder = self._address
        command = ["flower-superlink", "--host", host, "--port", str(port)]
        command += ["--disable-runtime-dependency-installation", "--enable-supernode-auth"]
        for option, name in (
            ("--ssl-ca-certfile", certificates.ROOT),
            ("--ssl-certfile", certificates.SERVER),
            ("--ssl-keyfile", certificates.SERVER_KEY),
        ):
            command += [option, str(folder.absolute() / name)]
        home = self._network / "flower"
        self._variables = environment(home)
        _write_toml(
            home / "config.toml",
            {
                "address": self._address.here,
                "root-certificates": str(self._address.root.absolute()),
            },
            f"[superlink.{_NAME}]\n",
        )
        self._say(f"$ export FLWR_HOME={shlex.quote(str(home))}")
        self._say(f"$ {shlex.join(command)}")
        self._process = start(command, self._variables, self._log)
        try:
            self._wait()
        except BaseException:
            end(self._process)
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        end(self._process)

    def register(self, public_key: Path) -> None:
        """Admit the client with this key."""
        done = subprocess.run(
            self._flwr("supernode", "register", str(public_key.absolute()), _NAME),
            capture_output=True,
            text=True,
            env=self._variables,
            check=False,
        )
        if done.returncode:
            text = " ".join(_COLORS.sub("", done.stdout + done.stderr).split())
            raise DeploymentError(f"{public_key}: Flower refuses it: {text}")

    def run(
        self, app: Path, settings: RunSettings, *, at_each_poll: Callable[[], None] = lambda: None
    ) -> None:
        """Run an app to its end, and pass on what its server prints.

        Args:
            app: folder of the app.
            settings: its run config.
            at_each_poll: called several times a second while it runs.
        """
        file = self._network / "run.toml"
        _write_toml(file, settings)
        command = self._flwr("run", str(app), _NAME, "--run-config", str(file), "--stream")
        with start(command, self._variables, subprocess.PIPE) as process:
            assert process.stdout is not None
            printed = TextIOWrapper(process.stdout, errors="replace")
            reader = Thread(target=pass_on, args=(printed, self._say), daemon=True)
            reader.start()
            try:
                while process.poll() is None:
                    at_each_poll()
                    if self._process.poll() is not None:
                        raise DeploymentError(f"flower-superlink ended; see {self._log}")
                    time.sleep(_POLL_SECONDS)
            finally:
                end(process)
            reader.join(_PATIENCE_SECONDS)

    def _flwr(self, *arguments: str) -> list[str]:
        self._say(f"$ {shlex.join(['flwr', *arguments])}")
        return [str(Path(sys.executable).with_name("flwr")), *arguments]

    def _wait(self) -> None:
        host, _, port = self._address.here.rpartition(":")
        until = time.monotonic() + _LINK_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            with suppress(OSError):
                socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
                if self._process.poll() is None:
                    return
            time.sleep(_POLL_SECONDS)
        lines = _COLORS.sub("", self._log.read_text(errors="replace")).strip().splitlines()
        last = next((line for line in reversed(lines) if "rror" in line), "no answer in time")
        raise DeploymentError(f"flower-superlink: {last.strip()} ({self._log})")


def _write_toml(file: Path, settings: RunSettings, head: str = "") -> None:
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    write_private(file, (head + "".join(lines)).encode())


def pass_on(lines: Iterable[str], say: Say) -> None:
    """Pass the lines of a run on, without Flower's own; an error for users is its one line."""
    held: list[str] = []
    for line in lines:
        plain = _COLORS.sub("", line).rstrip()
        if held or _RAISED in plain:
            held.append(plain)
        elif plain and not _OF_FLOWER.match(plain.lstrip()):
            say(plain.replace("WARNING:absl:", "WARNING: ", 1))
    found = [match[1] for match in map(_FOR_USERS.match, held) if match]
    for line in found[-1:] or held:
        say(line)
