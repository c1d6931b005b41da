"""Lines of a run for its user: without codes of colors and Flower's own, one for each stage, and sums."""

import json

import pytest

from jaxfed.flower.deployment import output

ENDED = {"round": 2, "stage": "update ended", "replies": 2, "lost": 1, "seconds": 2.9}


def test_lines_of_flower_are_left_out():
    assert output.readable("\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process") == ""
    assert output.readable("Successfully installed jaxfed-app to /x.") == ""
    assert output.readable("\x1b[93mWARNING \x1b[0m:   late") == "WARNING :   late"
    assert output.readable("WARNING:absl:round 2: late") == "WARNING: round 2: late"
    assert output.readable("round 1  \x1b[1mloss\x1b[0m 0.5") == "round 1  loss 0.5"


@pytest.mark.parametrize(
    ("error", "is_for_users"),
    [
        ("jaxfed.errors.UsageError: clients 1 of 3 are missing", True),
        ("jaxfed.flower.server.exchange.TooFewClients: 1 of 3", True),
        ("ValueError: a slip", False),
    ],
)
def test_a_traceback_of_an_error_for_users_is_left_out(error, is_for_users):
    lines = [
        "ERROR :     ServerApp raised an exception",
        '  File "server.py"',
        error,
        "Exit Code: 201",
    ]
    said = []
    traceback = output.Traceback(said.append)
    for line in ("round 1", *lines):
        traceback.say(line)
    traceback.end()
    assert said == ["round 1", *([] if is_for_users else lines)]


def test_a_line_for_each_stage(tmp_path):
    said = []
    (tmp_path / "stages.jsonl").write_text(json.dumps({"round": 1, "stage": "update"}) + "\n")
    lines = output.StageLines(tmp_path, said.append)
    seconds = {"start_max": 0.5, "step_max": 1.25, "transport_max": 1.0}
    with (tmp_path / "stages.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "stage": "update"}) + "\n")
        file.write(json.dumps(ENDED | seconds) + "\n" + '{"round": 2, "stage": "e')
    lines.look()
    lines.look()
    assert said == [
        "round 2, update: 2 replies, 1 lost in 2.9 s (at most: start 0.5, step 1.2, transport 1.0)"
    ]


def test_bytes_and_seconds_of_a_run(tmp_path):
    assert output.seconds_text(tmp_path) == ""
    network = {"upload_bytes": 110, "download_bytes": 220, "start_max": 0.5, "step_max": 1.0}
    rounds = [
        {
            "communication": {"upload_bytes": 100, "download_bytes": 200},
            "network": network | {"seconds": seconds},
        }
        for seconds in (4.0, 2.0, 3.0)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    found = output.traffic(tmp_path, 2)
    assert found == ((150, 300), (165, 330))
    assert str(found) == (
        "bytes a client: 165 up, the method's 150 and 15 of terms and times; "
        "330 down, the method's 300 and 30 of terms and times"
    )
    assert output.seconds_text(tmp_path).startswith(
        "seconds of clients: 4.0 s in round 1, 2.5 s in each later one (at most: start 0.5,"
    )
