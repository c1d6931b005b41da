"""A site's worker: one process that has JAX and jaxfed imported, and answers each message of the server.

    with worker.serving(folder) as address:    # a Unix socket in a folder that only this user can open
        ...                                    # the site's ClientApp sends each message there

Flower starts a process for each message. That process is thin: it hands the message over, and returns the
reply. So a round imports and compiles nothing anew.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Listener
from pathlib import Path
from threading import Thread

from absl import logging

from jaxfed.errors import UsageError
from jaxfed.experiment.store import compilation_cache
from jaxfed.flower.client import client_run
from jaxfed.flower.messages import records


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Answer messages from a client's folder in a thread, one after another; yields the socket's address."""
    # JAX would give one client most of an accelerator that clients on one machine share.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    compilation_cache.enable()
    with tempfile.TemporaryDirectory(prefix="jaxfed-") as place:
        address = str(Path(place) / "worker")
        try:
            listener = Listener(address, "AF_UNIX")
        except OSError as error:
            raise UsageError(
                f"{address}: {error}; set TMPDIR to a folder with a short name"
            ) from error
        with listener:
            Thread(target=_serve, args=(listener, folder), daemon=True).start()
            yield address


def _serve(listener: Listener, folder: Path) -> None:
    """Answer until the listener is closed."""
    perform = client_run.performer(folder)
    while True:
        try:
            connection = listener.accept()
        except OSError:
            return
        with connection:
            try:
                request = records.from_bytes(connection.recv_bytes())
                connection.send_bytes(records.to_bytes(perform(request)))
            except Exception as error:  # the app ended, or it is none; the next one is answered
                logging.warning("a message's process ended before its reply: %s", error)
