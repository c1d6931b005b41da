"""Flower's own SuperLink and three SuperNodes, over TLS with keys: an app that says who answers."""

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from jaxfed.flower import local, processes

pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
pytestmark = pytest.mark.slow

PROJECT = """
[project]
name = "echo"
version = "1.0.0"
description = "Who answers."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "jaxfed"
[tool.flwr.app.components]
serverapp = "echo.apps:server"
clientapp = "echo.apps:client"
[tool.flwr.app.config]
out = ""
nodes = 0
"""
APPS = """
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()


@client.query()
def answer(message, context):
    import jaxfed
    said = {"data": str(context.node_config["data"]), "jaxfed": jaxfed.__file__,
            "cache": os.environ.get("JAX_COMPILATION_CACHE_DIR", ""), "pid": os.getpid()}
    return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)


@server.main()
def main(grid, context):
    nodes = sorted(grid.get_node_ids())
    rounds = []
    for number in (1, 2):
        began = time.monotonic()
        sent = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
        replies = list(grid.send_and_receive(sent, timeout=300))
        assert not any(reply.has_error() for reply in replies), replies
        said = [dict(reply.content["said"]) for reply in replies]
        rounds.append({"seconds": time.monotonic() - began, "said": said})
        print("round", number, "has", len(said), "answers", flush=True)
    Path(context.run_config["out"]).write_text(json.dumps(rounds))
"""


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    (folder / "echo").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "echo" / "__init__.py").write_text("")
    (folder / "echo" / "apps.py").write_text(APPS)
    return folder


def status_without_key(address, path, certificate):
    """Status of a request by this process's user, as `flwr` would send it."""
    import ssl

    context = ssl.create_default_context(cafile=certificate)
    request = urllib.request.Request(f"https://{address}{path}", data=b"")
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_three_nodes_over_tls(tmp_path, app, record_property):
    clients = [tmp_path / "nodes" / str(number) for number in range(3)]
    for client in clients:
        client.mkdir(parents=True)
    network, out, said, seconds = tmp_path / "network", tmp_path / "out.json", [], {}
    began = time.monotonic()
    with local.Local(
        network, clients, programs_cache=tmp_path / "programs", say=said.append
    ) as started:
        started.start()
        seconds["online"] = time.monotonic() - began
        mark = json.loads((network / "processes.json").read_text())["mark"]
        assert len(set(processes._marked(mark))) >= 8  # each has its SuperExec
        status = started.run(app, {"out": str(out)})
        seconds["run"] = time.monotonic() - began - seconds["online"]
        assert status.is_completed, (status, said)
        root = network / "keys" / "ca.crt"
        address = started._control._client._base_url.partition("//")[2]
        # Without its key no node is served, though the fleet's interface is open to all.
        assert status_without_key(address, "/v1/fleet/pull-messages", root) in (
            400,
            401,
            403,
            415,
            422,
        )
        ended = time.monotonic()
    seconds["end"] = time.monotonic() - ended
    assert not set(processes._marked(mark))
    rounds = json.loads(out.read_text())
    seconds["rounds"] = [each["seconds"] for each in rounds]
    for each in rounds:
        assert sorted(answer["data"] for answer in each["said"]) == [
            str(client) for client in clients
        ]
        assert {answer["cache"] for answer in each["said"]} == {str(tmp_path / "programs")}
        assert {Path(answer["jaxfed"]).parents[1] for answer in each["said"]} == {local._ROOT}
    pids = [answer["pid"] for each in rounds for answer in each["said"]]
    assert len({*pids}) == 6  # each message is a new process
    assert any("round 2 has 3 answers" in line for line in said)
    assert {path.stat().st_mode & 0o077 for path in (network / "logs").iterdir()} == {0}
    print(json.dumps(seconds), os.getloadavg())
    record_property("seconds", seconds)
