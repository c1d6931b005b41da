"""`launch.flower server` and `client` as processes, both killed and started again within a run."""

import signal
import subprocess
import sys
import time
import warnings

import pytest
from invoking import ROOT

from jaxfed.flower.deployment import commands, programs

pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")


def launched(*arguments):
    command = [sys.executable, "-m", "launch.flower", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_server_and_a_killed_client_resume(tmp_path):
    for module, *own in (("client", "north", "0", "north"), ("server", "held")):
        command = [sys.executable, "-m", f"examples.flower.make_{module}", str(tmp_path / own[0])]
        subprocess.run([*command, *own[1:]], cwd=ROOT, check=True)
    (tmp_path / "north" / "client.toml").write_text('number = 0\nname = "n"\nleast_clients = 1\n')
    key = tmp_path / "keys" / "north.key"
    programs.make_node_key(key)
    place, port = tmp_path / "w", programs.free_port()
    keys = place / "network" / commands.KEYS
    programs.make_server_certificate(keys, ["127.0.0.1"])
    serve = ("server", f"--port={port}", f"--workdir={place}", f"--nodes={key.parent}")
    serve += (
        "--config=examples/flower/fedavg_digits.py:smoke",
        "--config.federation.num_clients=1",
    )
    serve += ("--config.rounds=6", "--config.evaluate_every=0", f"--held={tmp_path / 'held'}")
    join = ("client", f"--data={tmp_path / 'north'}", f"--key={key}")
    join += (f"--server=127.0.0.1:{port}", f"--ca={keys / 'ca.crt'}")
    client, server = launched(*join), launched(*serve)
    try:
        for line in server.stdout:
            if line.startswith("round 2, update: 1 replies"):
                break
        server.kill()
        server.communicate()
        time.sleep(3)  # until its processes have ended, too
        server = launched(*serve)
        for line in server.stdout:
            assert not line.startswith("round 1, ")  # it goes on from its checkpoint
            if line.startswith("round 4, update: 1 replies"):
                break
        for process in (client, server):
            process.kill()
            process.communicate()
        time.sleep(3)
        client, server = launched(*join), launched(*serve)
        assert "round 6, update: 1 replies" in server.communicate(timeout=300)[0]
        assert server.returncode == 0
        client.send_signal(signal.SIGINT)
        assert client.wait(30) == 130
        assert "round 6, update: " in client.stdout.read()
    finally:
        for process in (client, server):
            process.kill()
            process.communicate()


def test_the_app_is_one_that_flower_takes():
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert 0 < len(build_fab_from_disk(commands.APP)) < 10_000
        load_and_validate(commands.APP / "pyproject.toml")
