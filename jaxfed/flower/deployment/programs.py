"""Flower's own commands as processes of this one: flower-superlink, flower-supernode, flwr.

    run_app(network, address, keys, app, settings)      # $ flower-superlink ...
                                                        # $ flwr supernode register ...
                                                        # $ flwr run ... --stream
    keep_running({"flower-supernode": node_command(server, config, root=root, key=key)}, variables)

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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, NoReturn

from jaxfed.errors import UsageError
from jaxfed.flower.client.client_data import PRIVATE_FILE, PRIVATE_FOLDER, write_private
from jaxfed.flower.deployment import certificates

Say = Callable[[str], None]
RunSettings = Mapping[str, str | int | float | bool]

HERE = "127.0.0.1"
LOGS = "logs"
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
_BETWEEN_STARTS = 5.0  # seconds
_STEADY = 60.0  # seconds after which the end of a process is not of its start
_MOST_STARTS = 18  # one after another; Flower counts a killed node as connected for a minute
# Linux ends a process that began like this with the one that started it, however that ended.
_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OF_FLOWER = re.compile(r"(INFO|DEBUG) *:|Successfully (installed|started) |Starting logstream")


class DeploymentError(RuntimeError):
    """A failure of a running federation, in one line; the input may be right."""


def check_flower() -> None:
    """Check that Flower is installed."""
    if find_spec("flwr") is None:
        raise UsageError("Flower is missing; pip install -r requirements-flower.txt")


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
    output: Any = log
    if isinstance(log, Path):
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
        if isinstance(log, Path):
            os.close(output)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of `start` and its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def keep_running(
    commands: Mapping[str, Sequence[str]], variables: Mapping[str, str], *, say: Say
) -> NoReturn:
    """Start commands, and each again when it ends, until a signal ends this process.

    Raises:
        DeploymentError: one ends again and again.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    began, starts = dict.fromkeys(commands, 0.0), Counter[str]()
    try:
        while True:
            for name, command in commands.items():
                if name in running and (status := running[name].poll()) is None:
                    continue
                if name in running:
                    end(running[name])  # what is left of its group
                    if time.monotonic() - began[name] >= _STEADY:
                        starts[name] = 1
                    if starts[name] >= _MOST_STARTS:
                        raise DeploymentError(
                            f"{name} ended {starts[name]} times; the last status is {status}"
                        )
                    killed = " (killed, perhaps for its memory)" * (status == -signal.SIGKILL)
                    say(f"{name} ended with status {status}{killed}; starting it again")
                    time.sleep(_BETWEEN_STARTS)
                say(f"$ {shlex.join(command)}")
                starts[name] += 1
                began[name], running[name] = time.monotonic(), start(command, variables)
            time.sleep(_POLL_SECONDS)
    finally:
        for process in running.values():
            end(process)


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


def run_app(
    network: Path,
    address: Address,
    keys: Iterable[Path],
    app: Path,
    settings: RunSettings,
    *,
    clients: Sequence[Sequence[str]] = (),
    say: Say = print,
) -> None:
    """Start a SuperLink, admit clients, run an app to its end, and pass on what its server prints.

    Nodes and runs are in the SuperLink's memory only: with a database it would restart the rest of a killed
    run, and it cannot continue from one that is incomplete. Clients connect again by themselves.

    `network` gets logs and Flower's own files. `keys` are public keys, `settings` the app's run config.
    `clients` are commands of clients on this machine, which end with the run.
    """
    network, folder = network.absolute(), address.certificates.absolute()
    home, log = network / "flower", network / LOGS / "superlink.log"
    command = ["flower-superlink", f"--host={address.host}", f"--port={address.port}"]
    command += ["--disable-runtime-dependency-installation", "--enable-supernode-auth"]
    command += [f"--ssl-ca-certfile={folder / certificates.ROOT}"]
    command += [f"--ssl-certfile={folder / certificates.SERVER}"]
    command += [f"--ssl-keyfile={folder / certificates.SERVER_KEY}"]
    variables = environment(home)
    known = {"address": address.here, "root-certificates": str(folder / certificates.ROOT)}
    _write_toml(home / "config.toml", known, f"[superlink.{_NAME}]\n")
    _write_toml(network / "run.toml", settings)
    run = ["run", str(app), _NAME, "--run-config", str(network / "run.toml"), "--stream"]
    say(f"$ export FLWR_HOME={shlex.quote(str(home))}")
    with ExitStack() as started:

        def started_here(
            command: Sequence[str], variables: Mapping[str, str], log: Path | int
        ) -> Any:
            process = start(command, variables, log)
            started.callback(end, process)
            return process

        say(f"$ {shlex.join(command)}")
        link = started_here(command, variables, log)
        _wait(link, address, log)
        for key in keys:
            _register(key.absolute(), variables, say)
        nodes = {}
        for number, own in enumerate(clients):
            say(f"$ {shlex.join(own)}")
            name = f"node-{number}"
            own_log, own_variables = network / LOGS / f"{name}.log", environment(home / name)
            nodes[own_log] = started_here(own, own_variables, own_log)
        played = started_here(_flwr(run, say), variables, subprocess.PIPE)
        printed = TextIOWrapper(played.stdout, errors="replace")
        reader = Thread(target=pass_on, args=(printed, say), daemon=True)
        reader.start()
        while played.poll() is None:
            if link.poll() is not None:
                raise DeploymentError(f"flower-superlink ended; see {log}")
            for ended in [each for each, node in nodes.items() if node.poll() is not None]:
                say(f"{ended.stem} ended with status {nodes.pop(ended).returncode}; see {ended}")
            time.sleep(_POLL_SECONDS)
        reader.join(_PATIENCE_SECONDS)


def _register(public_key: Path, variables: Mapping[str, str], say: Say) -> None:
    """Admit the client with this key."""
    command = _flwr(["supernode", "register", str(public_key), _NAME], say)
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        text = " ".join(_COLORS.sub("", done.stdout + done.stderr).split())
        raise DeploymentError(f"{public_key}: Flower refuses it: {text}")


def _flwr(arguments: Sequence[str], say: Say) -> list[str]:
    say(f"$ {shlex.join(['flwr', *arguments])}")
    return [str(Path(sys.executable).with_name("flwr")), *arguments]


def _wait(process: Any, address: Address, log: Path) -> None:
    """Return when a SuperLink answers."""
    host, _, port = address.here.rpartition(":")
    until = time.monotonic() + _LINK_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            if process.poll() is None:
                return
        time.sleep(_POLL_SECONDS)
    lines = _COLORS.sub("", log.read_text(errors="replace")).strip().splitlines()
    last = next((line for line in reversed(lines) if "rror" in line), "no answer in time")
    raise DeploymentError(f"flower-superlink: {last.strip()} ({log})")


def _write_toml(file: Path, settings: RunSettings, head: str = "") -> None:
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    write_private(file, (head + "".join(lines)).encode())


def pass_on(lines: Iterable[str], say: Say) -> None:
    """Pass the lines of a run on, without Flower's own."""
    for line in lines:
        plain = _COLORS.sub("", line).rstrip()
        if plain and not _OF_FLOWER.match(plain.lstrip()):
            say(plain.replace("WARNING:absl:", "WARNING: ", 1))
