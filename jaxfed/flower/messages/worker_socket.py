"""Requests to the worker of a site, on its Unix socket; needs neither JAX nor Flower."""

from __future__ import annotations

import time
from multiprocessing.connection import Client, Connection

from jaxfed.flower.messages import records, steps
from jaxfed.flower.messages.records import Record

_START_S = 120.0  # within which a worker listens


def asked(address: str, request: Record) -> Record:
    """Return the worker's reply to a request.

    A worker that ends before its reply is started again by `launch.flower client`, and asked once more: a
    step that it has finished is not computed again.
    """
    for _ in range(2):
        with _connected(address) as worker:
            try:
                worker.send_bytes(records.to_bytes(request))
                return records.from_bytes(worker.recv_bytes())
            except (EOFError, OSError):
                continue
    text = "the process that computes at this site ended twice; it may need more memory"
    return steps.failed(None, steps.Failure("WorkerEnded", text=text))


def _connected(address: str) -> Connection:
    """Connect to the worker, which may still be starting."""
    until = time.monotonic() + _START_S
    while True:
        try:
            return Client(address, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
