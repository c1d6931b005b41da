"""What is checked before JAX connects the processes of a run."""

import socket

import pytest

from jaxfed.errors import UsageError
from jaxfed.host.parallel import processes

WITHOUT_JAX = {"num_processes": 2, "process_id": 1}


@pytest.fixture
def coordinator():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return f"localhost:{listening.getsockname()[1]}"


def test_process_0_is_awaited_with_one_line_and_not_for_ever(coordinator, monkeypatch):
    monkeypatch.setattr(processes, "LONGEST_WAIT", 0.4)
    monkeypatch.setattr(processes, "_QUIET", 0.1)
    told = []
    with pytest.raises(UsageError) as error:
        processes.connect(coordinator, **WITHOUT_JAX, tell=told.append)
    asked = f"--coordinator={coordinator}"
    assert str(error.value) == f"{asked}: process 0 did not start within 0.4 seconds"
    assert told == [f"{asked}: waiting for process 0"]
