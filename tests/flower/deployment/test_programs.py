"""Flower's commands as processes, their lines for users, and certificates and keys that TLS checks."""

import io
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from jaxfed.errors import UsageError
from jaxfed.flower.deployment import programs
from jaxfed.flower.deployment.programs import Address, DeploymentError

PYTHON = sys.executable
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def test_lines_of_flower_are_left_out():
    said = []
    lines = ["\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process", "Starting logstream for"]
    lines += ["\x1b[93mWARNING \x1b[0m:   late", "WARNING:absl:round 2: late", "", "\x1b[1mloss"]
    programs.pass_on(io.StringIO("\n".join(lines)), said.append)
    assert said == ["WARNING :   late", "WARNING: round 2: late", "loss"]


def test_a_start_begins_without_what_a_kill_left(tmp_path):
    """Flower takes half an app for whole, and goes on neither from half a database nor with its runs."""
    (tmp_path / "home" / "apps" / "half").mkdir(parents=True)
    found = programs.environment(tmp_path / "home")
    assert not (tmp_path / "home" / "apps").exists()
    assert found["FLWR_HOME"] == str(tmp_path / "home")
    assert (found["FLWR_TELEMETRY_ENABLED"], found["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")


def test_a_process_and_its_children_end(tmp_path):
    child = f"import subprocess, time; print(subprocess.Popen({SLEEP}).pid, flush=True); time.sleep(600)"
    log = tmp_path / "logs" / "x.log"
    process = programs.start([sys.executable, "-S", "-c", child], dict(os.environ), log)
    while not log.read_text():
        time.sleep(0.02)
    assert (log.stat().st_mode & 0o077, log.parent.stat().st_mode & 0o077) == (0, 0)
    programs.end(process)
    assert process.returncode == -15
    assert is_gone(int(log.read_text()))


HOLDER = """
import os, sys, time
sys.path[:0] = {path!r}
from jaxfed.flower.deployment import programs
programs.start({command!r}, dict(os.environ))
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems leave it")
def test_a_process_ends_with_its_starter():
    command = [*SLEEP[:-1], f"import os; print(os.getpid(), flush=True); {SLEEP[-1]}"]
    code = HOLDER.format(path=sys.path, command=command)
    with subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        started = int(holder.stdout.readline())
        holder.kill()
    assert is_gone(started)


def is_gone(pid):
    """Within a few seconds; a zombie that nobody waits for is gone."""
    for _ in range(200):
        done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if done.stdout.strip()[:1] in ("", "Z"):
            return True
        time.sleep(0.02)
    return False


def test_a_superlink_that_ends_is_one_line(tmp_path, monkeypatch):
    script = tmp_path / "flower-superlink"
    script.write_text("#!/bin/sh\necho Error: no link today\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").symlink_to(PYTHON)
    said, address = [], Address("127.0.0.1", programs.free_port(), tmp_path / "keys")
    with pytest.raises(DeploymentError, match="flower-superlink: Error: no link today"):
        programs.run_app(tmp_path / "n", address, {}, tmp_path, {}, say=said.append)
    assert said[0] == f"$ export FLWR_HOME={tmp_path / 'n' / 'flower'}"
    assert said[1].startswith("$ flower-superlink --host=127.0.0.1 --port=")
    config = (tmp_path / "n" / "flower" / "config.toml").read_text()
    assert f'root-certificates = "{tmp_path / "keys" / "ca.crt"}"' in config


LINK = """#!{python}
import socket, sys, time
port = next(each for each in sys.argv if each.startswith("--port=")).partition("=")[2]
with socket.create_server(("127.0.0.1", int(port))):
    time.sleep(1)
"""


def test_a_superlink_that_ends_within_a_run_is_one_line_with_its_own_log(tmp_path, monkeypatch):
    scripts = {"flower-superlink": LINK.format(python=PYTHON)}
    scripts["flwr"] = '#!/bin/sh\n[ "$1" = run ] && exec sleep 600\nexit 0\n'
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").symlink_to(PYTHON)
    address = Address("127.0.0.1", programs.free_port(), tmp_path / "keys")
    clients = {tmp_path / "north.pub": SLEEP}
    with pytest.raises(DeploymentError, match=r"flower-superlink ended; see .*/superlink\.log"):
        programs.run_app(tmp_path / "n", address, clients, tmp_path, {}, say=str)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def handshake(folder, root, name):
    """The client's error, or None: one TLS handshake between two ends of a socket pair."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(folder / "server.crt", folder / "server.key")
    here = ssl.create_default_context(cafile=root)
    here.verify_flags |= ssl.VERIFY_X509_STRICT  # as newer Pythons have it
    ends = socket.socketpair()

    def serve():
        try:
            there.wrap_socket(ends[1], server_side=True).close()
        except OSError:
            ends[1].close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        here.wrap_socket(ends[0], server_hostname=name).close()
    except OSError as error:
        return error
    finally:
        ends[0].close()
        thread.join()
    return None


def test_a_client_trusts_the_server_by_its_names_alone(tmp_path):
    keys, other = tmp_path / "keys", tmp_path / "other"
    names = ["fl.example.org", "192.0.2.7"]
    programs.make_server_certificate(keys, names)
    programs.make_server_certificate(other, names)
    assert (mode(keys), mode(keys / "server.key")) == (0o700, 0o600)
    for name in (*names, "localhost", "127.0.0.1"):
        assert handshake(keys, keys / "ca.crt", name) is None
    assert "Hostname mismatch" in str(handshake(keys, keys / "ca.crt", "other.example.org"))
    assert "verify failed" in str(handshake(keys, other / "ca.crt", "localhost"))


def test_files_that_are_there_are_kept(tmp_path):
    programs.make_server_certificate(tmp_path, [])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    programs.make_server_certificate(tmp_path, ["localhost", "127.0.0.1"])
    for name in ("x.org", "192.0.2.7"):
        with pytest.raises(UsageError, match=f"server.crt does not name {name}; add it, or remove"):
            programs.make_server_certificate(tmp_path, ["localhost", name])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "ca.crt").unlink()  # of a start that was killed
    programs.make_server_certificate(tmp_path, ["x.org"])
    assert handshake(tmp_path, tmp_path / "ca.crt", "x.org") is None
    (tmp_path / "server.key").chmod(0o640)
    with pytest.raises(UsageError, match="others can read this private key; chmod 600"):
        programs.make_server_certificate(tmp_path, [])


def test_a_clients_key_is_one_that_flower_takes(tmp_path, monkeypatch):
    public = programs.make_node_key(tmp_path / "keys" / "north.key")
    assert public == programs.make_node_key(tmp_path / "keys" / "north.key")
    assert mode(public.with_suffix("")) == 0o600
    read = serialization.load_ssh_public_key(public.read_bytes())
    assert isinstance(read, ec.EllipticCurvePublicKey)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="ssh-keygen is missing; install it, or bring"):
        programs.make_node_key(tmp_path / "a.key")
