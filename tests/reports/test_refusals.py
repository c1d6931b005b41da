"""What reports refuse: damaged files of a run, and bad arguments."""

import json
from pathlib import Path

import refusals
from small_workdirs import make_run

from jaxfed.reports.report import write_report
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
    "...give a workdir": launched(),
    "...no such directory: no/such/place": launched("no/such/place"),
    "...a report has no config": launched("RUN", "--config.seed=1"),
    "--out=": launched("RUN", "--out=F"),
    "--format=eps: no such format": launched("RUN", "--format=eps"),
}

test_refused = refusals.table(FILES | ARGUMENTS)
