"""Flower's SuperExec, whose processes begin with everything imported (Linux).

    python -m jaxfed.flower.deployment.executor superlink|supernode ARGUMENTS

The arguments are those of flower-superexec. `local.environment` puts a script of that name, which starts this
module, before Flower's own.

Flower starts a process for each message to a client and for each run. Imports of Flower, JAX and jaxfed would
be most of its time. Here one process imports them while its node waits, starts no device, and forks for each
message: still a process of its own, which ends with its message. What a message has imported besides is then
imported here, too, so that the next one has it ready. Flower 1.42 itself has nothing like it for client apps:
its warm executors serve agents on Kubernetes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxfed.flower.deployment import waits
from jaxfed.host import gc_tuning

# Flower's program -> its module, whose function has the program's name.
_PROGRAMS = {
    "flwr-clientapp": "flwr.supernode.cli.flwr_clientapp",
    "flwr-serverapp": "flwr.superlink.cli.flwr_serverapp",
}
# What processes of each kind import. Modules that start a thread or a device must not be here.
_EVERYBODY = (
    *("flax.nnx", "optax", "jaxlib.mlir.dialects.mhlo", "jaxfed.config.assembly"),
    *("jaxfed.algorithms.fedavg", "jaxfed.models.mlp", "jaxfed.training.round.network"),
    *("jaxfed.training.round.evaluation", "jaxfed.training.local.local_training"),
)
_IMPORTED = {
    "supernode": (
        *_EVERYBODY,
        "flwr.clientapp",
        _PROGRAMS["flwr-clientapp"],
        "jaxfed.flower.client.client_run",
        "jaxfed.flower.messages.grid_messages",
    ),
    "superlink": (
        *_EVERYBODY,
        "flwr.serverapp",
        _PROGRAMS["flwr-serverapp"],
        "jaxfed.flower.server.server_run",
        "jaxfed.flower.messages.grid_messages",
    ),
}
_LEARNED = ("jaxfed", "scipy", "sklearn")  # packages whose forks compute, and which start no device
_DEPTH = 2  # of names of others' modules: the rest follows by itself
_AT_ONCE = 4096  # bytes that a pipe takes without others' in between


def write_script(folder: Path, kind: str) -> None:
    """Write a program flower-superexec into a folder, which starts this module."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / "flower-superexec"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {__name__} {kind} "$@"\n')
    script.chmod(0o700)


class ForkServer:
    """A process with imported modules, which forks for each program that it is asked to start.

    Attributes:
        pid: its number.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        """Start it. The caller must not have started a thread."""
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(writing)
            _serve(modules, reading)
            os._exit(0)
        os.close(reading)
        self._requests = os.fdopen(writing, "w", encoding="utf-8")

    def start(self, command: Sequence[str], *, is_silent: bool) -> None:
        """Start a command of `_PROGRAMS`.

        Raises:
            OSError: the server has ended.
        """
        self._requests.write(json.dumps([list(command), is_silent]) + "\n")
        self._requests.flush()


class InPlaceOfSubprocess:
    """The part of `subprocess` that Flower's executor uses."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self, server: ForkServer, own_waits: waits.Waits) -> None:
        self._server, self._waits = server, own_waits

    def Popen(self, command: Sequence[str], stdout: Any = None, stderr: Any = None) -> None:
        """Start a command by the fork server if it knows the program."""
        self._waits.message()
        if command[0] in _PROGRAMS:
            own = list(command)
            if "--parent-pid" in own:  # a program ends with the process that started it
                own[own.index("--parent-pid") + 1] = str(self._server.pid)
            try:
                self._server.start(own, is_silent=stdout == subprocess.DEVNULL)
                return
            except OSError:
                print("the fork server has ended; from now on each process imports", flush=True)
        subprocess.Popen(command, stdout=stdout, stderr=stderr)


def _serve(modules: Sequence[str], requests: int) -> None:
    """Import, then fork for each line of a pipe until its other end is closed."""
    with gc_tuning.importing():  # what is imported is never scanned again, in no fork
        for name in modules:
            import_module(name)
    waits.shorten_pulls()
    signal.signal(signal.SIGCHLD, _bury)
    learned, writing = os.pipe()
    os.set_blocking(writing, False)
    for line in _lines(requests, learned):
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(requests)
            os.close(learned)
            _become(*json.loads(line), learned=writing)


def _lines(requests: int, learned: int) -> Iterator[bytes]:
    """Yield the lines of a pipe to its end; import what another one names while there is nothing to yield."""
    rests = {requests: b"", learned: b""}
    while True:
        ready, _, _ = select.select([requests, learned], [], [])
        source = requests if requests in ready else learned
        content = os.read(source, 1 << 16)
        if not content:
            return
        *lines, rests[source] = (rests[source] + content).split(b"\n")
        if source == requests:
            yield from lines
            continue
        with gc_tuning.importing():
            for line in lines:
                for name in line.decode().split():
                    with suppress(ImportError):
                        import_module(name)


def _tell(before: set[str], learned: int) -> None:
    """Write the modules that have been imported since, in lines that arrive whole."""
    names, line = sorted(sys.modules.keys() - before), ""
    for name in (*names, ""):
        root, depth = name.split(".", 1)[0], name.count(".") + 1
        if name and (root not in _LEARNED or (root != "jaxfed" and depth > _DEPTH)):
            continue
        if line and (not name or len(line) + len(name) + 2 > _AT_ONCE):
            with suppress(OSError):  # it has ended, or has enough to read
                os.write(learned, line.encode() + b"\n")
            line = ""
        line = f"{line} {name}"


def _bury(*_: Any) -> None:
    """Wait for children that have ended, so that their CPU time is counted and none stays a zombie."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(command: Sequence[str], is_silent: bool, *, learned: int) -> None:
    """Run a program in this process, and end with it; `learned` is told what it has imported."""
    before = set(sys.modules)
    if is_silent:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    sys.argv = list(command)
    status = 1
    try:
        if command[0] == "flwr-clientapp":
            waits.wait_for_message()
        module = import_module(_PROGRAMS[command[0]])
        getattr(module, command[0].replace("-", "_"))()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _tell(before, learned)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Start a fork server, then Flower's SuperExec."""
    server = ForkServer(_IMPORTED[sys.argv.pop(1)])
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    subprocess_executor.subprocess = InPlaceOfSubprocess(server, waits.shorten_executor())
    sys.argv[0] = "flower-superexec"
    flower_superexec()


if __name__ == "__main__":
    main()
