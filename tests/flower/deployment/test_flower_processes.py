"""Flower's own SuperLink and three SuperNodes, over TLS with keys: an app that says who answers."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from contextlib import suppress
from pathlib import Path

import kill_drills
import numpy as np
import pytest

from jaxfed.flower.deployment import certificates, commands, local, processes

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
config = ""
overrides = ""
workdir = ""
server = ""
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
    settings = context.run_config
    place = Path(settings["workdir"], "out.json") if settings["workdir"] else Path(settings["out"])
    place.parent.mkdir(parents=True, exist_ok=True)
    nodes = []
    while len(nodes) < (1 if settings["workdir"] else 3):
        nodes = sorted(grid.get_node_ids())
        time.sleep(0.2)
    rounds = []
    for number in (1, 2):
        began = time.monotonic()
        sent = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
        replies = list(grid.send_and_receive(sent, timeout=300))
        assert not any(reply.has_error() for reply in replies), replies
        said = [dict(reply.content["said"]) for reply in replies]
        rounds.append({"seconds": time.monotonic() - began, "said": said})
        print("round", number, "has", len(said), "answers", flush=True)
    place.write_text(json.dumps(rounds))
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


HOLDER = """
import sys, time
from pathlib import Path
from jaxfed.flower.deployment.local import Local
with Local(Path({network!r}), [Path({client!r})]) as started:
    started.start()
    print("started", flush=True)
    time.sleep(600)
"""


def test_flower_ends_by_itself_when_its_starter_is_killed(tmp_path):
    code = HOLDER.format(network=str(tmp_path / "network"), client=str(tmp_path))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=local._ROOT) as holder:
        while holder.stdout.readline() != "started\n":
            assert holder.poll() is None
        mark = json.loads((tmp_path / "network" / "processes.json").read_text())["mark"]
        assert len(set(processes._marked(mark))) >= 4
        holder.kill()
    until = time.monotonic() + 60
    while set(processes._marked(mark)):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_server_and_a_client_of_two_commands(tmp_path, app, monkeypatch):
    """`launch.flower client` in a process of its own, and what `launch.flower server` does, here."""
    client = tmp_path / "north"
    client.mkdir(mode=0o700)
    (client / "client.toml").write_text('number = 0\nname = "north"\n')
    np.savez(client / "train.npz", x=np.ones((4, 3), np.float32), y=[0, 1, -1, -1])
    held = tmp_path / "held"
    held.mkdir()
    shared = {"num_classes": 2, "class_names": ["a", "b"], "example": ["float32", 8, 8, 1]}
    (held / "shared.json").write_text(json.dumps(shared))
    key = certificates.make_node_key(tmp_path / "keys" / "north.key").private
    place, port, said = tmp_path / "w", local.free_ports(1)[0], []
    keys = place / "network" / "keys"
    certificates.make_server_certificate(certificates.make_authority(keys), keys, ["127.0.0.1"])
    command = [sys.executable, "-m", "launch.flower", "client", f"--data={client}"]
    command += [f"--server=127.0.0.1:{port}", f"--ca={keys / 'ca.crt'}", f"--key={key}"]
    monkeypatch.setattr(commands, "APP", app)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=local._ROOT) as node:
        assert "node of" in node.stdout.readline()
        try:
            status = commands.serve(
                "examples/flower/fedavg_digits.py",
                ["deployment.nodes=1"],
                place,
                host="127.0.0.1",
                port=port,
                nodes=tmp_path / "keys",
                held=held,
                say=said.append,
            )
        except BaseException:
            node.kill()
            raise
        mark = json.loads((client / "node" / "processes.json").read_text())["mark"]
        node.send_signal(signal.SIGINT)
        assert node.wait(30) == 130
        assert f"connected to 127.0.0.1:{port}" in node.stdout.read()
    assert status == 0, said
    rounds = json.loads((place / "run" / "out.json").read_text())
    assert [answer["data"] for each in rounds for answer in each["said"]] == [str(client)] * 2
    assert not set(processes._marked(mark))


def test_a_server_that_is_killed_at_any_moment_starts_again(tmp_path):
    """In the seconds of its first start, with all that it has started, as by a power cut."""
    clients = [
        sys.executable,
        "-m",
        "examples.flower.make_client",
        str(tmp_path / "north"),
        "0",
        "north",
    ]
    servers = [sys.executable, "-m", "examples.flower.make_server", str(tmp_path / "held")]
    for command in (clients, servers):
        subprocess.run(command, cwd=local._ROOT, check=True)
    (tmp_path / "north" / "client.toml").write_text('number = 0\nname = "n"\nleast_clients = 1\n')
    key = certificates.make_node_key(tmp_path / "keys" / "north.key").private
    place, port = tmp_path / "w", local.free_ports(1)[0]
    keys, log = place / "network" / "keys", place / "network" / "logs" / "link.log"
    certificates.make_server_certificate(certificates.make_authority(keys), keys, ["127.0.0.1"])
    serve = [sys.executable, "-m", "launch.flower", "server", f"--port={port}", "--host=127.0.0.1"]
    serve += ["--config=examples/flower/fedavg_digits.py:smoke", "--config.deployment.nodes=1"]
    serve += [f"--workdir={place}", f"--nodes={tmp_path / 'keys'}", f"--held={tmp_path / 'held'}"]
    join = [sys.executable, "-m", "launch.flower", "client", f"--data={tmp_path / 'north'}"]
    join += [f"--server=127.0.0.1:{port}", f"--ca={keys / 'ca.crt'}", f"--key={key}"]
    with subprocess.Popen(join, stdout=subprocess.PIPE, text=True, cwd=local._ROOT) as node:
        for seconds in (1.0, 2.0, 4.0, 8.0):
            log.unlink(missing_ok=True)
            with subprocess.Popen(serve, cwd=local._ROOT) as server:
                while not log.exists():
                    assert server.poll() is None
                    time.sleep(0.05)
                time.sleep(seconds)
                started = kill_drills.descendants(server.pid)
                server.kill()
                for pid in started:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        assert subprocess.run(serve, cwd=local._ROOT, check=False, timeout=300).returncode == 0
        node.send_signal(signal.SIGINT)
        said, _ = node.communicate(timeout=30)
    assert "round 0, hello: " in said
    assert "round 2, update: " in said


def test_the_app_is_one_that_flower_takes():
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert 0 < len(build_fab_from_disk(commands.APP)) < 10_000
        load_and_validate(commands.APP / "pyproject.toml")
