"""Process that forks a site's ClientApps, so that no message imports Flower anew (1 to 2 s of a core).

    python -m launch.client_apps FOLDER

`launch.flower client` starts it. For each message Flower starts a program by its name, `flwr-clientapp`.
FOLDER, which is first in the PATH of the SuperNode, gets one of this name that hands its arguments to this
process. This process has imported Flower's own program and forks; the child runs that program as it is. While
nobody listens here, Flower's program is started as usual.
"""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
import socket
import sys
from importlib.metadata import entry_points
from pathlib import Path

_PROGRAM, _SOCKET = "flwr-clientapp", "apps"
_HAND_OVER = """import os, socket, sys
_, address, program, *arguments = sys.argv
try:
    with socket.socket(socket.AF_UNIX) as apps:
        apps.connect(address)
        apps.sendall("\\0".join(arguments).encode())
except OSError:
    os.execv(program, [program, *arguments])
"""


def _write_program(folder: Path) -> None:
    """Write the program that Flower starts."""
    executable = shutil.which(_PROGRAM, path=str(Path(sys.executable).parent))
    command = [sys.executable, "-SE", "-c", _HAND_OVER, str(folder / _SOCKET), str(executable)]
    program = folder / _PROGRAM
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o700)


def serve(folder: Path) -> None:
    """Fork an app for each list of arguments that arrives."""
    (entry,) = entry_points(group="console_scripts", name=_PROGRAM)
    run = entry.load()
    import jaxfed.flower.messages.grid_messages  # noqa: F401, for the children

    (folder / _SOCKET).unlink(missing_ok=True)  # of a process that was killed
    gc.freeze()  # children share the pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave nothing
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / _SOCKET))
        listener.listen()
        _write_program(folder)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                arguments = stream.read().decode().split("\0")
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sys.argv = [_PROGRAM, *arguments]
                sys.exit(run())


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
