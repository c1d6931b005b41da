"""The process that forks ClientApps: Flower's program runs in a fork, and by itself where none confirms."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from invoking import ROOT

from jaxfed.flower.deployment import programs

pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


@contextlib.contextmanager
def forking(folder):
    """The process, and the program that it has written."""
    flowers = programs.program(programs.CLIENT_APP)
    command = [sys.executable, "-m", "launch.client_apps", str(folder), str(flowers)]
    with subprocess.Popen(command, cwd=ROOT, **PIPES) as apps:
        while not os.access(program := folder / flowers.name, os.X_OK):
            assert apps.poll() is None
            time.sleep(0.1)
        yield apps, program
        apps.kill()


def test_flowers_program_is_forked_and_started_as_usual_without_the_process(tmp_path):
    with forking(tmp_path) as (apps, program):
        handed_over = subprocess.run([program, "--help"], **PIPES, check=True)
        assert handed_over.stdout == ""
        assert apps.stdout.readline().startswith("usage: flwr-clientapp")
    by_itself = subprocess.run([program, "--help"], **PIPES, check=True)
    assert by_itself.stdout.startswith("usage: flwr-clientapp")


def test_a_message_survives_a_process_that_dies_before_it_forks(tmp_path):
    with forking(tmp_path) as (_, program):
        pass
    (tmp_path / "apps").unlink()
    received = []

    def die():
        with listener, listener.accept()[0] as connection:
            while part := connection.recv(100):
                received.append(part)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "apps"))
        listener.listen()
        thread = threading.Thread(target=die)
        thread.start()
        by_itself = subprocess.run([program, "--help"], **PIPES, check=True)
        thread.join()
    assert b"".join(received) == b"--help"
    assert by_itself.stdout.startswith("usage: flwr-clientapp")


def test_a_program_whose_caller_has_given_up_does_not_run(tmp_path):
    """The caller has started Flower's own, with the same message."""
    with forking(tmp_path) as (apps, program):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(tmp_path / "apps"))
                caller.sendall(b"--unknown")
        subprocess.run([program, "--help"], **PIPES, check=True)
        assert apps.stdout.readline().startswith("usage: flwr-clientapp")
        apps.kill()
        assert "flwr-clientapp: error" not in apps.stdout.read()
