"""Windows of clients: tables by hand."""

import numpy as np
import pytest

from jaxfed.federation.clock import Availability, read_windows

AWAY = -np.inf
TABLE = "client,from,to\n2,0,5\n0,10,20\n0,30,40\n1,0,100\n2,60,100\n"


def trace(tmp_path, text=TABLE, num_clients=4, clients=None):
    (tmp_path / "t.csv").write_text(text)
    windows = read_windows(str(tmp_path / "t.csv"), num_clients)
    return Availability(
        windows, np.arange(num_clients) if clients is None else np.array(clients, int)
    )


@pytest.mark.parametrize(
    ("time", "ends"),
    [
        (0.0, [AWAY, np.inf, 5.0, AWAY]),  # client 1 has the whole table, client 3 none of it
        (5.0, [AWAY, np.inf, AWAY, AWAY]),
        (10.0, [20.0, np.inf, AWAY, AWAY]),
        (25.0, [AWAY, np.inf, AWAY, AWAY]),
        (30.0, [40.0, np.inf, AWAY, AWAY]),
        (70.0, [AWAY, np.inf, 105.0, AWAY]),  # goes on in the repetition
        (100.0, [AWAY, np.inf, 105.0, AWAY]),
        (1015.0, [1020.0, np.inf, AWAY, AWAY]),  # the tenth repetition
    ],
)
def test_windows_of_a_table_by_hand(tmp_path, time, ends):
    assert trace(tmp_path).until(np.arange(4), time).tolist() == ends
    assert trace(tmp_path).until(np.array([2, 0]), time).tolist() == [ends[2], ends[0]]


def test_rows_that_touch_are_one_window(tmp_path):
    """The hours of a day, shuffled: client 0 has all of them, client 1 the first two and the last."""
    hours = [*((0, hour) for hour in range(24)), (1, 0), (1, 1), (1, 23)]
    rows = [f"{client},{hour * 3600},{hour * 3600 + 3600}\n" for client, hour in hours[::-1]]
    own = trace(tmp_path, "client,from,to\n" + "".join(rows))
    clients = np.arange(2)
    assert own.until(clients, 0.0).tolist() == [np.inf, 7200.0]
    assert own.until(clients, 7200.0).tolist() == [np.inf, AWAY]
    assert own.until(clients, 23.5 * 3600).tolist() == [
        np.inf,
        86400 + 7200.0,
    ]  # goes on at midnight


def test_the_next_window_of_a_table(tmp_path):
    own = trace(tmp_path, "client,from,to\n0,10,20\n1,30,40\n")
    assert [own.next_start(time) for time in (0, 10, 29, 30, 65)] == [10, 30, 30, 50, 70]
    for time in (12345.6, 1e7 / 3):  # a window has begun when it is said to begin
        start = own.next_start(time)
        assert (own.until(np.arange(2), start) > start).any()


def test_the_next_window_of_some_clients(tmp_path):
    table = "client,from,to\n0,10,20\n1,30,40\n2,5,8\n"
    own, some = trace(tmp_path, table), trace(tmp_path, table, clients=[1, 2])
    assert [some.next_start(time) for time in (0, 10, 29, 30)] == [5, 30, 30, 45]
    assert some.until(np.arange(3), 10.0).tolist() == own.until(np.arange(3), 10.0).tolist()
    assert trace(tmp_path, table, clients=[3]).next_start(0.0) == np.inf
