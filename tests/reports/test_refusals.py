"""What reports refuse: damaged files of a run, and bad arguments."""

import json
from pathlib import Path

import refusals
from small_workdirs import make_run

from jaxfed.experiment.store.records import find
from jaxfed.reports.bounds import write_bounds
from jaxfed.reports.report import write_report
from jaxfed.reports.target import target_table
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
            ("partition.json", {"labeled": [[1]]}),
            ("partition.json", {"labeled": "a", "unlabeled": "b"}),
            ("partition.json", RAGGED),
            ("metrics.jsonl", b'{"algorithm": "\xff"}\n'),
            ("metrics.jsonl", b"[1]\n"),
            ("sweep.json", {"base": [], "points": []}),
            ("sweep.json", {"base": {}, "points": 5}),
            ("sweep.json", {"base": {}, "points": [5]}),
        ]
    )
}


SMALL = {"clients": (3, 5), "rates": (1.0,), "public": (1, 400), "deltas": (0.05,)}


def wanted(**given):
    def call():
        try:
            write_bounds(Path("b"), **SMALL | given)
        finally:
            assert not Path("b").exists()

    return call


def one_shot_target():
    (run,) = find([make_run(Path("alone"), {"xclp": (0.9,), "client_knn": (0.8,)})]).runs
    target_table(run, 0.8, "target")


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
    "...one-shot methods only": one_shot_target,
    "...give a workdir": launched(),
    "...no such directory: no/such/place": launched("no/such/place"),
    "...a report has no config": launched("RUN", "--config.seed=1"),
    "--out=": launched("RUN", "--out=F"),
    "--target=80: use numbers from 0 to 1, such as 0.8": launched("RUN", "--target=80"),
    "--target=0.8: r has no accuracies of rounds": launched("RUN", "--target=0.8"),
}

test_refused = refusals.table(FILES | ARGUMENTS)
