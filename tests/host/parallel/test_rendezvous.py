"""Processes meet before they connect: here each is a thread."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxfed.errors import UsageError
from jaxfed.host.parallel import rendezvous

HOST = "localhost"


@pytest.fixture
def port():
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        return listening.getsockname()[1]


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as pool:
        yield pool


def first(port, num_processes, **keywords):
    """Process 0, which leaves the port to a service; the service takes whoever comes."""
    rendezvous.meet(HOST, port, num_processes, 0, **keywords)
    service = socket.create_server((HOST, port))
    threading.Timer(2.0, service.close).start()
    return "met"


def other(port, num_processes, number, **keywords):
    rendezvous.meet(HOST, port, num_processes, number, **keywords)
    return "met"


def greeted(port, text):
    """A connection that has said this to process 0."""
    while True:
        try:
            guest = socket.create_connection((HOST, port), timeout=5)
        except OSError:
            continue
        guest.sendall(text)
        return guest


def problem(future):
    with pytest.raises(UsageError) as error:
        future.result(timeout=20)
    return str(error.value)


@pytest.mark.parametrize("others_come_first", [False, True])
def test_all_go_when_all_are_there(port, pool, others_come_first):
    wait = threading.Event()
    late = [pool.submit(lambda i=i: wait.wait() and other(port, 3, i)) for i in (2, 1)]
    if others_come_first:
        wait.set()
    process_0 = pool.submit(first, port, 3)
    assert not process_0.done()
    wait.set()
    assert [future.result(timeout=20) for future in (process_0, *late)] == ["met"] * 3


def test_one_alone_goes_at_once(port):
    rendezvous.meet(HOST, port, 1, 0)
    socket.create_server((HOST, port)).close()  # the port is free


def test_another_number_of_processes_ends_both(port, pool):
    both = pool.submit(first, port, 2), pool.submit(other, port, 3, 1)
    line = "--num_processes=3 at process 1, 2 at process 0"
    assert [problem(future) for future in both] == [line] * 2


def test_who_is_there_already_is_not_let_in_twice(port, pool):
    process_0 = pool.submit(first, port, 3)
    guest = greeted(port, b"jaxfed 3 1\n")
    refused = problem(pool.submit(other, port, 3, 1))
    assert refused == "--process_id=1: another process with this number has connected"
    assert pool.submit(other, port, 3, 2).result(timeout=20) == process_0.result() == "met"
    assert guest.recv(100) == b"go\n"
    guest.close()


def test_who_leaves_is_missed_and_may_come_again(port, pool):
    process_0 = pool.submit(first, port, 3)
    greeted(port, b"jaxfed 3 1\n").close()
    one = pool.submit(other, port, 3, 2)
    with pytest.raises(TimeoutError):
        process_0.result(timeout=0.5)
    again = pool.submit(other, port, 3, 1)
    assert [future.result(timeout=20) for future in (process_0, one, again)] == ["met"] * 3


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"jaxfed 2 x\n", b"\xff\xfe\n", b"\n"])
def test_other_languages_are_not_heard(port, pool, said):
    process_0 = pool.submit(first, port, 2)
    greeted(port, said).close()
    assert other(port, 2, 1) == process_0.result() == "met"


def test_a_second_process_0_finds_the_port_taken(port, pool):
    process_0 = pool.submit(first, port, 2)
    guest = greeted(port, b"")
    with pytest.raises(UsageError, match=f"--coordinator=localhost:{port}: the port is in use"):
        rendezvous.meet(HOST, port, 2, 0)
    guest.close()
    assert other(port, 2, 1) == process_0.result() == "met"


def test_who_waits_says_so_once_and_not_for_ever(port, pool, monkeypatch):
    monkeypatch.setattr(rendezvous, "LONGEST_WAIT", 0.4)
    monkeypatch.setattr(rendezvous, "_QUIET", 0.1)
    told = []
    asked = f"--coordinator=localhost:{port}"
    late = f"{asked}: process 0 did not connect within 0.4 seconds"
    assert problem(pool.submit(other, port, 3, 1, tell=told.append)) == late
    assert told.pop() == f"{asked}: waiting for process 0"
    assert not told
    late = f"{asked}: processes 1, 2 of 3 did not connect within 0.4 seconds"
    assert problem(pool.submit(first, port, 3, tell=told.append)) == late
    assert told == [f"{asked}: waiting for processes 1, 2 of 3"]


def test_those_who_wait_hear_why_process_0_gives_up(port, pool):
    process_0 = pool.submit(first, port, 3)
    guest = greeted(port, b"jaxfed 3 1\n")
    greeted(port, b"jaxfed 4 2\n").close()
    line = "--num_processes=4 at process 2, 3 at process 0"
    assert problem(process_0) == line
    assert guest.recv(200) == f"{line}\n".encode()
    guest.close()


def test_another_program_at_the_port_is_no_process_0(port, pool):
    with socket.create_server((HOST, port)) as listening:
        refused = pool.submit(other, port, 2, 1)
        guest, _ = listening.accept()
        guest.sendall(b"220 mail\n")
        assert (
            problem(refused)
            == f"--coordinator=localhost:{port}: process 0 of jaxfed does not listen there"
        )
        guest.close()
