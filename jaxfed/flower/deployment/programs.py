"""Flower's own commands as processes of this one (flower-superlink, flower-supernode, flwr), and their keys.

Each command is printed as a user would type it. Telemetry, the update check and the installation of an app's
dependencies are switched off by Flower's own variables and flags.

A folder of certificates has ca.crt, server.crt and server.key. An institution that issues certificates fills
it itself. Otherwise the server's certificate is made by openssl and signs itself, so ca.crt is a copy of it.
Clients have keys of ssh-keygen.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, NoReturn, TextIO

from jaxfed.errors import UsageError
from jaxfed.flower.client.client_data import PRIVATE_FILE, PRIVATE_FOLDER, write_private

Say = Callable[[str], None]
RunSettings = Mapping[str, str | int | float | bool]

HERE, _LOOPBACK = "127.0.0.1", ("localhost", "127.0.0.1", "::1")
ROOT, _SERVER, _SERVER_KEY = "ca.crt", "server.crt", "server.key"
LOGS = "logs"
_REPOSITORY = Path(__file__).parents[3]
_NAME = "jaxfed"  # of the SuperLink in Flower's config.toml
CLIENT_APP = "flwr-clientapp"
_PROGRAMS = f"flower-superlink flower-supernode flower-superexec flwr flwr-serverapp {CLIENT_APP}"
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
# Linux ends a process that began like this with the one that started it, however that ended.
_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OF_FLOWER = re.compile(r"(INFO|DEBUG) *:|Successfully (installed|started) |Starting logstream")


class DeploymentError(RuntimeError):
    """A failure of a running federation, in one line; the input may be right."""


def check_flower() -> None:
    """Check that Flower is installed, with its programs, which start each other by their names."""
    if find_spec("flwr") is None:
        raise UsageError("Flower is missing; pip install -r requirements-flower.txt")
    for name in _PROGRAMS.split():
        program(name)


def program(name: str) -> Path:
    """Return the file of a program of Flower: beside Python, where pip installs it, or in PATH."""
    folder = str(Path(sys.executable).parent)
    if found := shutil.which(name, path=os.pathsep.join([folder, *os.get_exec_path()])):
        return Path(found)
    wrong = f"Flower's program {name} is neither beside Python in {folder} nor in PATH"
    raise UsageError(f"{wrong}; install Flower into a virtual environment and use its Python")


class Address(NamedTuple):
    """Address of a SuperLink, and the folder of its certificates."""

    host: str
    port: int
    certificates: Path

    @property
    def here(self) -> str:
        """HOST:PORT by which this machine reaches it."""
        return f"{HERE if self.host == '0.0.0.0' else self.host}:{self.port}"

    @property
    def root(self) -> Path:
        """The certificate by which clients know it."""
        return self.certificates / ROOT


def environment(home: Path) -> dict[str, str]:
    """Return the variables of Flower's commands, whose own files go into `home`.

    Apps of an earlier process are deleted there: Flower takes an incomplete one for whole.
    """
    home.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    shutil.rmtree(home / "apps", ignore_errors=True)
    variables = os.environ | _OWN_VARIABLES | {"FLWR_HOME": str(home)}
    # Flower starts its other programs by name, and apps import jaxfed from another folder.
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", _REPOSITORY)):
        variables[name] = os.pathsep.join(filter(None, [str(first), variables.get(name, "")]))
    for name in ("NO_PROXY", "no_proxy"):  # whatever proxy there is for others
        variables[name] = ",".join(filter(None, [variables.get(name, ""), *_LOOPBACK]))
    return variables


def start(
    command: Sequence[str], variables: Mapping[str, str], log: Path | int | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own.

    Its output goes to a file, to `subprocess.PIPE`, or where that of this process goes. Call it
    from the main thread. On Linux the process ends with this one, however this one ends.
    """
    output: Any = log
    if isinstance(log, Path):
        log.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, PRIVATE_FILE)
    watched = [sys.executable, "-S", "-c", _WITH_PARENT] if sys.platform == "linux" else []
    try:
        return subprocess.Popen(
            [*watched, *command],
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
    """Start commands, and each again when it ends, until a signal ends this process."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while True:
            for name, command in commands.items():
                if name in running:
                    if (status := running[name].poll()) is None:
                        continue
                    end(running[name])  # what is left of its group
                    killed = " (killed, perhaps for its memory)" * (status == -signal.SIGKILL)
                    say(f"{name} ended with status {status}{killed}; starting it again")
                    time.sleep(_BETWEEN_STARTS)
                say(f"$ {shlex.join(command)}")
                running[name] = start(command, variables)
            time.sleep(_POLL_SECONDS)
    finally:
        for process in running.values():
            end(process)


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.create_server((HERE, 0)) as probe:
        return int(probe.getsockname()[1])


def check_free(address: Address) -> None:
    """Refuse an address that this machine does not have, or where another process listens."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        raise UsageError(f"--host={address.host} --port={address.port}: {error.strerror}") from None


def node_command(server: str, config: str, port: int, *, root: Path, key: Path) -> list[str]:
    """Return the command of a client's SuperNode at a port; `config`, in TOML, is for its ClientApps."""
    command = ["flower-supernode", "--superlink", server, "--port", str(port)]
    command += ["--node-config", config, "--root-certificates", str(root)]
    return [*command, "--auth-supernode-private-key", str(key)]


def run_app(
    network: Path,
    address: Address,
    clients: Mapping[Path, Sequence[str]],
    app: Path,
    settings: RunSettings,
    *,
    say: Say = print,
) -> None:
    """Start a SuperLink, admit clients, run an app to its end, and pass on what its server prints.

    Nodes and runs are in the SuperLink's memory only: with a database it would restart the rest of a killed
    run, and it cannot continue from one that is incomplete. Clients connect again by themselves.

    `network` gets logs and Flower's own files. `settings` are the app's run config. `clients` are public
    keys, with commands of clients on this machine, which end with the run; () for others.
    """
    network, folder = network.absolute(), address.certificates.absolute()
    home, log = network / "flower", network / LOGS / "superlink.log"
    command = ["flower-superlink", f"--host={address.host}", f"--port={address.port}"]
    command += ["--disable-runtime-dependency-installation", "--enable-supernode-auth"]
    command += [f"--ssl-ca-certfile={folder / ROOT}", f"--ssl-certfile={folder / _SERVER}"]
    command += [f"--ssl-keyfile={folder / _SERVER_KEY}"]
    variables = environment(home)
    known = {"address": address.here, "root-certificates": str(folder / ROOT)}
    _write_toml(home / "config.toml", known, f"[superlink.{_NAME}]\n")
    _write_toml(network / "run.toml", settings)
    run = ["run", str(app), _NAME, "--run-config", str(network / "run.toml"), "--stream"]
    say(f"$ export FLWR_HOME={shlex.quote(str(home))}")
    with ExitStack() as started:

        def started_here(command: Sequence[str], variables: Any, log: Path | int) -> Any:
            process = start(command, variables, log)
            started.callback(end, process)
            return process

        say(f"$ {shlex.join(command)}")
        link = started_here(command, variables, log)
        _wait(link, address, log)
        for key in clients:
            _register(key.absolute(), variables, say)
        for key, words in clients.items():
            if words:
                say(f"$ {shlex.join(words)}")
                output = network / LOGS / f"{key.stem}.log"
                started_here(words, environment(home / key.stem), output)
        played = started_here(_flwr(run, say), variables, subprocess.PIPE)
        printed = TextIOWrapper(played.stdout, errors="replace")
        reader = Thread(target=pass_on, args=(printed, say), daemon=True)
        reader.start()
        while played.poll() is None:
            if link.poll() is not None:
                raise DeploymentError(f"flower-superlink ended; see {log}")
            time.sleep(_POLL_SECONDS)
        reader.join(_PATIENCE_SECONDS)


def _register(public_key: Path, variables: Mapping[str, str], say: Say) -> None:
    """Admit the client with this key."""
    command = _flwr(["supernode", "register", str(public_key), _NAME], say)
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        text = " ".join(_COLORS.sub("", done.stdout + done.stderr).split())
        raise DeploymentError(f"{public_key}: Flower refuses it: {text}")


def _flwr(arguments: Sequence[str], say: Say) -> list[str]:
    say(f"$ {shlex.join(['flwr', *arguments])}")
    return [str(program("flwr")), *arguments]


def _wait(process: Any, address: Address, log: Path) -> None:
    """Return when a SuperLink answers."""
    host, _, port = address.here.rpartition(":")
    until = time.monotonic() + _LINK_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        time.sleep(_POLL_SECONDS)
    lines = _COLORS.sub("", log.read_text(errors="replace")).strip().splitlines()
    last = next((line for line in reversed(lines) if "rror" in line), "no answer in time")
    raise DeploymentError(f"flower-superlink: {last.strip()} ({log})")


def _write_toml(file: Path, settings: RunSettings, head: str = "") -> None:
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    write_private(file, (head + "".join(lines)).encode())


def pass_on(lines: TextIO, say: Say) -> None:
    """Pass the lines of a run on, without Flower's own, and close their stream."""
    with lines:
        for line in lines:
            plain = _COLORS.sub("", line).rstrip()
            if plain and not _OF_FLOWER.match(plain.lstrip()):
                say(plain.replace("WARNING:absl:", "WARNING: ", 1))


def make_server_certificate(folder: Path, names: Sequence[str]) -> None:
    """Make a server's key and certificate for these host names and addresses, or check older ones."""
    certificate, root = folder / _SERVER, folder / ROOT
    if root.exists():
        check_private(folder / _SERVER_KEY)
        for name in names if shutil.which("openssl") else ():
            check = "-checkip" if _alternative(name).startswith("IP") else "-checkhost"
            if "NOT" in _made("openssl", "x509", "-noout", "-in", certificate, check, name):
                anew = f"remove {folder} for a new one, whose {ROOT} the clients then need"
                raise UsageError(f"{certificate} does not name {name}; add it, or {anew}")
        return
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    wanted = ",".join(map(_alternative, dict.fromkeys([*names, *_LOOPBACK])))
    _made(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"),
        *("-nodes", "-days", "397", "-keyout", folder / _SERVER_KEY, "-out", certificate),
        *("-subj", "/CN=jaxfed server", "-addext", f"subjectAltName={wanted}"),
        *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
        *("-addext", "extendedKeyUsage=serverAuth"),
    )
    shutil.copyfile(certificate, root)  # last: a start that was killed before begins anew


def make_node_key(private: Path) -> Path:
    """Make a client's key pair, P-384 in OpenSSH's format, unless it is there; return the public file."""
    if not private.exists():
        private.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        flags = ["-q", "-t", "ecdsa", "-b", "384", "-C", "jaxfed", "-N", ""]
        _made("ssh-keygen", *flags, "-f", private)
    return private.with_name(f"{private.name}.pub")


def check_private(key: Path) -> None:
    """Refuse a private key that others can read."""
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        raise UsageError(f"{key}: others can read this private key; chmod 600 {key}")


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _made(*command: str | Path) -> str:
    """Run a program that makes keys, and return what it prints; a refusal is one line."""
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=out, umask=0o077
        )
    except FileNotFoundError:
        wrong = f"{command[0]} is missing; install it, or bring keys of your own"
        raise UsageError(wrong) from None
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        last = (printed.splitlines() or ["it failed"])[-1]
        raise UsageError(f"{command[0]} {command[1]} ... {command[-1]}: {last}")
    return printed
