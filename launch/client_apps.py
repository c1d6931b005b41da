"""Process that forks a site's ClientApps, so that no message imports Flower anew (1 to 2 s of a core).

    python -m launch.client_apps FOLDER PROGRAM

`launch.flower client` starts it. For each message Flower starts a program by its name, `flwr-clientapp`.
FOLDER, which is first in the PATH of the SuperNode, gets one of this name that hands its arguments to this
process. This process has imported Flower's own program and forks; the child confirms the hand-over and runs
that program as it is. Without a confirmation, PROGRAM, Flower's own file, is started as usual: nobody
listens, this process has died in between, or it cannot fork. A child whose caller has given up ends.
"""

from __future__ import annotations

import gc
import os
import shlex
import signal
import socket
import sys
from importlib.metadata import entry_points
from pathlib import Path

_SOCKET = "apps"
_CONFIRMED = b"1"
_HAND_OVER = """import os, socket, sys
_, address, program, *arguments = sys.argv
try:
    with socket.socket(socket.AF_UNIX) as apps:
        apps.settimeout(10)
        apps.connect(address)
        apps.sendall(os.fsencode("\\0".join(arguments)))
        apps.shutdown(socket.SHUT_WR)
        confirmed = apps.recv(1)
except OSError:
    confirmed = b""
if not confirmed:
    os.execv(program, [program, *arguments])
"""


def _write_program(file: Path, address: Path, program: Path) -> None:
    """Write the program that Flower starts, unless it is there: Flower may be starting it."""
    if os.access(file, os.X_OK):
        return
    command = [sys.executable, "-SE", "-c", _HAND_OVER, str(address), str(program)]
    file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    file.chmod(0o700)


def serve(folder: Path, program: Path) -> None:
    """Fork an app for each list of arguments that arrives."""
    (entry,) = entry_points(group="console_scripts", name=program.name)
    run = entry.load()
    import jaxfed.flower.messages.grid_messages  # noqa: F401, for the children

    address = folder / _SOCKET
    address.unlink(missing_ok=True)  # of a process that was killed
    gc.freeze()  # children share the pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave nothing
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        _write_program(folder / program.name, address, program)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                arguments = os.fsdecode(stream.read()).split("\0")
                if os.fork():
                    continue
                listener.close()
                try:
                    connection.sendall(_CONFIRMED)
                except OSError:  # the caller has given up, and starts PROGRAM
                    return
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.argv = [program.name, *arguments]
            sys.exit(run())


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
