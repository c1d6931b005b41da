"""A site's worker: answers on a socket of its user, one message after another, whatever the app does."""

import stat
from multiprocessing.connection import Client
from pathlib import Path

import network_deployment
import pytest

from jaxfed.errors import UsageError
from jaxfed.flower.client import client_run
from jaxfed.flower.deployment import worker
from jaxfed.flower.messages import records
from jaxfed.flower.messages.steps import Step, request


@pytest.fixture
def folder(tmp_path):
    config = network_deployment.config_of("fedavg")
    return network_deployment.deal(config, tmp_path)[0]


def asked(address, record):
    with Client(address, "AF_UNIX") as connection:
        connection.send_bytes(records.to_bytes(record))
        return records.from_bytes(connection.recv_bytes())


def test_a_worker_answers_as_the_function_does(folder):
    hello = request(Step("r", 1, "hello", 0, 0), {})
    with worker.serving(folder) as address:
        place = Path(address).parent
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        with Client(address, "AF_UNIX") as connection:
            connection.send_bytes(b"no record")
        with Client(address, "AF_UNIX") as connection:  # an app that is killed before the reply
            connection.send_bytes(records.to_bytes(hello))
        assert asked(address, hello) == client_run.perform(hello, folder=folder)
    assert not place.exists()


def test_a_folder_whose_name_is_too_long_is_one_line(folder, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(worker.tempfile, "tempdir", str(long))
    with pytest.raises(UsageError, match="set TMPDIR"), worker.serving(folder):
        pass


def test_an_app_hands_its_message_over_and_keeps_nothing(folder, monkeypatch):
    pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
    from flwr.app import Context, RecordDict

    from jaxfed.flower.app.jaxfed_app import client
    from jaxfed.flower.messages import grid_messages

    hello = request(Step("r", 1, "hello", 0, 0), {})
    monkeypatch.setattr(grid_messages, "answered", lambda message, perform: perform(message))
    with worker.serving(folder) as address:
        context = Context(1, 2, {"worker": address}, RecordDict(), {})
        assert client.answer(hello, context) == client_run.perform(hello, folder=folder)
    with pytest.raises(OSError, match="No such file"):
        client.answer(hello, context)
