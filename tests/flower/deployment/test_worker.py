"""A site's worker: answers on a socket, one message after another, and once more by a new one if it ends."""

import contextlib
import threading
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path

import network_deployment
import pytest

from jaxfed.flower.client import client_run
from jaxfed.flower.messages import records
from jaxfed.flower.messages.steps import Step, failure_of, request

REGISTRATION = request(Step("r", 1, "registration", 0, 0), {})


def started(target, *arguments):
    threading.Thread(target=target, args=arguments, daemon=True).start()


def connected(address):
    for _ in range(500):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return Client(address, "AF_UNIX")
        time.sleep(0.02)
    raise AssertionError("nobody listens")


def test_a_worker_answers_as_the_function_does(tmp_path):
    folder = network_deployment.deal(network_deployment.config_of("fedavg"), tmp_path)[0]
    address = str(tmp_path / "w")
    Path(address).write_text("")  # of a worker that was killed
    started(client_run.serve, folder, address)
    for content in (b"no record", records.to_bytes(REGISTRATION)):  # apps that end before the reply
        with connected(address) as connection:
            connection.send_bytes(content)
    with connected(address) as connection:
        connection.send_bytes(records.to_bytes(REGISTRATION))
        reply = records.from_bytes(connection.recv_bytes())
    assert reply == client_run.perform(REGISTRATION, folder=folder, kept={})


def serving(address, ends):
    """Echo requests; the first `ends` end the worker, and a new one listens after a moment."""
    for number in range(ends + 1):
        Path(address).unlink(missing_ok=True)
        with Listener(address, "AF_UNIX") as listener:
            connection = listener.accept()
        with connection:  # ends after its listener, as those of a killed process
            content = connection.recv_bytes()
            if number == ends:
                connection.send_bytes(content)
        time.sleep(0.2)


@pytest.mark.parametrize("ends", [0, 1, 2])
def test_an_app_asks_a_new_worker_once_more(tmp_path, monkeypatch, ends):
    pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
    from flwr.app import Context, RecordDict

    from jaxfed.flower.app.jaxfed_app import client

    monkeypatch.setattr(client.grid_messages, "answered", lambda message, perform: perform(message))
    address = str(tmp_path / "w")
    started(serving, address, ends)
    reply = client.answer(REGISTRATION, Context(1, 2, {"worker": address}, RecordDict(), {}))
    if ends < 2:
        assert reply == REGISTRATION
    else:
        assert str(failure_of(reply)).startswith("WorkerEnded: the process that computes at this")
    monkeypatch.setattr(client.grid_messages, "_WORKER_SECONDS", 0.1)
    with pytest.raises(OSError, match="No such file"):
        client.answer(REGISTRATION, Context(1, 2, {"worker": f"{address}2"}, RecordDict(), {}))
