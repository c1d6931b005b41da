"""What reports refuse: damaged files of a run, and bad arguments."""

import json
from pathlib import Path
from unittest import mock

import refusals
from small_workdirs import make_run

from jaxfed.experiment.store.records import find
from jaxfed.experiment.tracking import tracker
from jaxfed.reports.documents.bounds import Wanted, of_run, write_bounds
from jaxfed.reports.documents.event_files import write_event_files
from jaxfed.reports.documents.report import write_report
from jaxfed.reports.tables.target_table import target_table
from launch import report


def odd(name, content):
    """A report of a run one of whose files is not as it was written."""

    def call():
        path = make_run(Path("run")) / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        write_report(["run"], "report")

    return call


RAGGED = {"labeled": [[1], [1, 2]], "unlabeled": [[1], [2]]}
FILES = {
    f"...run/{name}...  {number}": odd(name, content)
    for number, (name, content) in enumerate(
        [
            ("summary.json", {"algorithms": []}),
            ("summary.json", {"algorithms": {"xclp": 3}}),
            ("summary.json", {"algorithm": ["xclp"]}),
            ("summary.json", {"num_repeats": "three"}),
            ("summary.json", {"environment": 5}),
            ("summary.json", {"environment": {"command": ["python"]}}),
            ("summary.json", {"environment": {"commit": 12}}),
            ("config.json", {"seed": "a"}),
            ("config.json", {"num_repeats": []}),
            ("config.json", {"paper_table": []}),
            ("partition.json", {"labeled": [[1]]}),
            ("partition.json", {"labeled": "a", "unlabeled": "b"}),
            ("partition.json", RAGGED),
            ("metrics.jsonl", b'{"algorithm": "\xff"}\n'),
            ("metrics.jsonl", b"[1]\n"),
            ("metrics.jsonl", b'{"algorithm": [], "round": 1}\n'),
            ("metrics.jsonl", b'{"algorithm": "xclp", "round": "1"}\n'),
            ("sweep.json", {"base": [], "points": []}),
            ("sweep.json", {"base": {}, "points": 5}),
            ("sweep.json", {"base": {}, "points": [5]}),
        ]
    )
}


SMALL = Wanted(clients=(3, 5), rates=(1.0,), public=(1, 400), deltas=(0.05,), estimate=20)


def wanted(**given):
    def call():
        try:
            write_bounds(Path("b"), SMALL._replace(**given))
        finally:
            assert not Path("b").exists()

    return call


def consensus(voters=None, folder="r"):
    """A run's bounds, where there is a run; a method with a consensus has a number of voters."""

    def call():
        path = make_run(Path("r"), {"fedct": (0.8,)} if voters else None)
        line = {"repeat": 0, "algorithm": "fedct", "round": 1, "consensus_change": 0.5}
        (path / "metrics.jsonl").write_text(json.dumps({**line, "voters": voters}) + "\n")
        if voters:
            summary = json.loads((path / "summary.json").read_text())
            (path / "summary.json").write_text(json.dumps({**summary, "algorithm": "fedct"}))
        of_run(Path(folder), SMALL)

    return call


def one_shot_target():
    (run,) = find([make_run(Path("alone"), {"xclp": (0.9,), "client_knn": (0.8,)})]).runs
    target_table(run, 0.8, "target")


def without_tensorboard():
    make_run(Path("one"))
    with mock.patch.object(tracker, "find_spec", return_value=None):
        write_event_files(["one"], "tb")


def launched(*arguments):
    def call():
        run = make_run(Path("r").resolve(), {"xclp": (0.9, 0.9), "fedavg": (0.5, 0.5)})
        Path("file").touch()
        given = [
            a.replace("RUN", str(run)).replace("F", str(Path("file").resolve())) for a in arguments
        ]
        refusals.launched(report.main, *given)()

    return call


ARGUMENTS = {
    "--clients=2: use integers from 3 on": wanted(clients=(2,)),
    "--rates=0.0: use": wanted(rates=(0.0,)),
    "--public=0: use": wanted(public=(0,)),
    "--deltas=0.7: use": wanted(deltas=(0.7,)),
    "--rates: 5 numbers; use 1 to 4": wanted(rates=(1.0,) * 5),
    "--clients: 11 numbers; use 1 to 10": wanted(clients=tuple(range(3, 14))),
    "--estimate=-1: use integers from 0 on": wanted(estimate=-1),
    "...Proposition 1 needs 3 or more clients": consensus(),
    "...Proposition 1 needs 3 or more clients  voters": consensus(2),
    "...no config.json": consensus(folder="."),
    "...one-shot methods only": one_shot_target,
    "--tensorboard='tensorboard': ...; pip install tensor": without_tensorboard,
    "...give a workdir": launched(),
    "...no such directory: no/such/place": launched("no/such/place"),
    "...a report has no config": launched("RUN", "--config.seed=1"),
    "--out=": launched("RUN", "--out=F"),
    "--target=80: use numbers from 0 to 1, such as 0.8": launched("RUN", "--target=80"),
    "--target=0.8: r has no accuracies of rounds": launched("RUN", "--target=0.8"),
    "--target: goes with a report": launched("RUN", "--target=0.8", "--tensorboard=t"),
}

test_refused = refusals.table(FILES | ARGUMENTS)
