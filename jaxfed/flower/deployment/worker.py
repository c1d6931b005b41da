"""A site's worker: one process that has JAX and jaxfed imported, and answers each message of the server.

    python -m jaxfed.flower.deployment.worker FOLDER SOCKET

`launch.flower client` starts it beside the SuperNode, and again if it ends, as for lack of memory. Flower
starts a process for each message. That process is thin: it hands the message to the worker's Unix socket, in
a folder that only this user can open, and returns the reply. So a round imports and compiles nothing anew.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Listener
from pathlib import Path

from absl import logging

from jaxfed.experiment.store import compilation_cache
from jaxfed.flower.client import client_run
from jaxfed.flower.messages import records


def serve(folder: Path, address: str) -> None:
    """Answer messages from a client's folder, one after another."""
    perform = client_run.performer(folder)
    Path(address).unlink(missing_ok=True)  # of a worker that was killed
    with Listener(address, "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                try:
                    request = records.from_bytes(connection.recv_bytes())
                    connection.send_bytes(records.to_bytes(perform(request)))
                except Exception as error:  # the app ended, or it is none; the next one is answered
                    logging.warning("a message's process ended before its reply: %s", error)


if __name__ == "__main__":
    # JAX would give one client most of an accelerator that clients on one machine share.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    compilation_cache.enable()
    serve(Path(sys.argv[1]), sys.argv[2])
