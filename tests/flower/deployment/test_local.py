"""Processes of a federation: they start, are waited for in bounded time, and none outlives its holder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import kill_drills
import pytest
import stand_in_flower

from jaxfed.errors import UsageError
from jaxfed.flower.deployment import local, processes
from jaxfed.flower.deployment.processes import DeploymentError, Processes, Started

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def clients(tmp_path):
    folders = [tmp_path / "nodes" / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


def federation(tmp_path, clients, *options, said=None, **keywords):
    said = [] if said is None else said
    return local.Local(
        tmp_path / "network",
        clients,
        programs=stand_in_flower.programs(*options),
        connect=stand_in_flower.Control,
        say=said.append,
        **keywords,
    )


def alive(mark):
    """Processes with a mark, their children included."""
    return set(processes._marked(mark))


def mark_of(folder):
    return json.loads((folder / "processes.json").read_text())["mark"]


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_from_start_to_end(tmp_path, clients):
    said = []
    polls = []
    with federation(tmp_path, clients, said=said, programs_cache=tmp_path / "programs") as started:
        started.start()
        mark = mark_of(tmp_path / "network")
        assert len(alive(mark)) == 8  # a child of each is in a session of its own
        status = started.run(tmp_path, {}, at_each_poll=lambda: polls.append(1))
        assert status.is_completed
    assert polls
    assert said == ["3 nodes are online", "round 1 of 2", "round 2"]
    assert not alive(mark)
    assert not (tmp_path / "network" / "processes.json").exists()
    log = tmp_path / "network" / "logs" / "link.log"
    environment = json.loads(log.read_text().partition(" ")[2])
    assert environment == {
        "FLWR_HOME": str(tmp_path / "network" / "homes" / "link"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    assert f'data="{clients[1]}"' in (log.parent / "node-1.log").read_text()
    files = [path for path in (tmp_path / "network").rglob("*") if path.is_file()]
    open_to_others = {path.name for path in files if path.stat().st_mode & 0o077}
    assert open_to_others <= {
        ".lock",
        "ca.crt",
        "server.crt",
        *(f"node-{n}.key.pub" for n in range(3)),
    }


def test_without_encryption(tmp_path, clients):
    with federation(tmp_path, clients[:1], encrypted=False) as started:
        started.start()
        assert not (tmp_path / "network" / "keys").exists()


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--link-fails", "link ended with status 1: no link today"),
        ("--node-fails", "node-0 ended with status 1: no node today"),
    ],
)
def test_what_ends_at_the_start_is_one_line(tmp_path, clients, option, line):
    with federation(tmp_path, clients[:1], option) as started:
        mark = mark_of(tmp_path / "network")
        with pytest.raises(DeploymentError, match=line):
            started.start()
    assert not alive(mark)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "INFO: up\n\x1b[91mERROR \x1b[0m: Exit Code: 305\nNo connection.\n[SSL] bad name\n"
            "For more information, visit: <x>\nINFO: Finished\n",
            "No connection. [SSL] bad name",
        ),
        ("12 ERROR address already in use\nINFO down\n", "12 ERROR address already in use"),
        ("one\ntwo\n\n", "two"),
        ("", "(no output)"),
    ],
)
def test_the_reason_of_an_end_is_found_in_the_output(tmp_path, output, reason):
    log = tmp_path / "log"
    log.write_text(output)
    assert Started("node", None, log).reason() == reason


def test_a_start_begins_without_what_a_kill_left(tmp_path):
    """Flower takes half an app for whole, and neither goes on from half a database nor forgets its runs."""
    app = tmp_path / "home" / "apps" / "half"
    app.mkdir(parents=True)
    for kind in ("superlink", None):
        local.environment(tmp_path / "home", None, kind)
        assert not app.parent.exists()
        app.mkdir(parents=True)
    command = local.Server("127.0.0.1", 1).command(("flower-superlink",))
    assert not [word for word in command if "database" in word]


def test_who_is_missing_is_named_in_time(tmp_path, clients, monkeypatch):
    command = local.node_command

    def deaf(program, data, server, **keywords):
        return SLEEP if data == clients[1] else command(program, data, server, **keywords)

    monkeypatch.setattr(local, "node_command", deaf)
    monkeypatch.setattr(local, "_BETWEEN_LINES", 0.5)
    said, limits = [], local.Limits(nodes=2.0)
    with (
        pytest.raises(DeploymentError, match=r"^node-1 not online after 2 s; see"),
        federation(tmp_path, clients, said=said, limits=limits) as started,
    ):
        started.start()
    assert any(line.startswith("waiting for") and "node-1" in line for line in said)


def test_a_killed_node_is_no_failure_of_the_run(tmp_path, clients):
    said = []
    with federation(tmp_path, clients, said=said) as started:
        started.start()
        mark = mark_of(tmp_path / "network")
        before = len(alive(mark))
        kill_drills.kill(started.processes, "node-2")
        until(lambda: len(alive(mark)) == before - 2)  # with its child
        os.kill(started.processes._started["node-1"].process.pid, signal.SIGKILL)
        assert started.run(tmp_path, {}).is_completed
    assert [line.partition(":")[0] for line in said if "ended" in line] == [
        "node-1 ended with signal 9"
    ]


def test_a_lost_link_ends_the_run(tmp_path, clients):
    with federation(tmp_path, clients[:1]) as started:
        started.start()
        with pytest.raises(DeploymentError, match="link ended with signal 9"):
            started.run(
                tmp_path,
                {"seconds": 60},
                at_each_poll=lambda: kill_drills.kill(started.processes, "link"),
            )


def test_programs_that_ignore_a_request_are_killed(tmp_path, clients, monkeypatch):
    monkeypatch.setattr(processes, "_PATIENCE_SECONDS", 0.2)
    with federation(tmp_path, clients[:1], "--stubborn") as started:
        started.start()
        mark = mark_of(tmp_path / "network")
    assert not alive(mark)


HOLDER = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.flower.deployment.processes import Processes
with Interruption() as interruption:
    try:
        with Processes(Path({folder!r})) as held:
            for name in "ab":
                held.start(name, {command!r})
            print("started", flush=True)
            time.sleep(600)
    except Interrupted as signal:
        sys.exit(signal.exit_status)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds two others, in the folder `held`."""
    code = HOLDER.format(path=sys.path, folder=str(tmp_path / "held"), command=SLEEP)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "started\n"
        yield process
        process.kill()


def test_a_signal_ends_all(tmp_path, holder):
    mark = mark_of(tmp_path / "held")
    assert len(alive(mark)) == 2
    holder.send_signal(signal.SIGINT)
    assert holder.wait(10) == 130
    assert not alive(mark)


def test_the_next_start_ends_what_a_kill_left_and_no_stranger(tmp_path, holder):
    folder = tmp_path / "held"
    mark = mark_of(folder)
    with pytest.raises(UsageError, match="another process is running here"), Processes(folder):
        pass
    holder.kill()
    holder.wait()
    assert len(alive(mark)) == 2
    with subprocess.Popen(
        SLEEP
    ) as stranger:  # with the number of one of ours, which has ended since
        record = json.loads((folder / "processes.json").read_text())
        record["processes"].append({"pid": stranger.pid, "started": "another boot 12345"})
        record["processes"].append({"pid": os.getpid(), "started": "another boot 12345"})
        (folder / "processes.json").write_text(json.dumps(record))
        with Processes(folder) as held:
            assert held.left_behind == 2
            assert not alive(mark)
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("content", ["", "[]", '{"mark": "x"}', '{"mark": "x", "processes": [{}]}'])
def test_a_damaged_record_ends_nobody(tmp_path, content):
    (tmp_path / "processes.json").write_text(content)
    assert processes.end_left_behind(tmp_path) == 0


def test_ports_are_free_and_different():
    ports = local.free_ports(5)
    assert len({*ports}) == 5
