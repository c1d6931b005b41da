"""Rounds, seconds and bytes that each method takes to a target accuracy."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxfed.errors import UsageError
from jaxfed.experiment.store.records import Measurement, Run, measure, read_metrics
from jaxfed.reports.tables.display_names import measurement_text
from jaxfed.reports.tables.method_names import method_names
from jaxfed.reports.tables.tables import Cell, Table

# Accuracy of a round's state, the first one that a run has -> of which examples.
_JUDGES = {"round_test_accuracy": "the test set", "validation_accuracy": "validation examples"}
_SUMS = {"seconds": "seconds", "upload_bytes": "upload", "download_bytes": "download"}


def target_table(run: Run, target: float, name: str) -> Table:
    """Return a run's methods against what they take to a target accuracy, over the repeats that reach it.

    A repeat reaches it in the first evaluated round whose accuracy is at least the target, of the test set if
    rounds are evaluated on it (`evaluate_test`), else of validation examples. Seconds and bytes are sums over
    the rounds up to this one; bytes are those of all clients.

    Args:
        run: finished.
        target: in [0, 1].
        name: of the CSV file.

    Raises:
        UsageError: the run has no accuracies of rounds.
    """
    lines = read_metrics(run.workdir)
    judge = next((metric for metric in _JUDGES if any(metric in line for line in lines)), None)
    if judge is None:
        raise UsageError(
            f"--target={target:g}: {run.name} has no accuracies of rounds; config.evaluate_test=true, or "
            "validation examples, with config.evaluate_every, make them"
        )
    names = method_names([run])
    rows, records = [], []
    for method in run.results:
        runs = dict[int, list[dict[str, Any]]]()
        for line in lines:
            if line["algorithm"] == method:
                runs.setdefault(line["repeat"], []).append(line)
        found = [taken for each in runs.values() if (taken := _taken(each, judge, target))]
        measured = {k: measure([taken[k] for taken in found]) for k in ("round", *_SUMS) if found}
        cells = [measurement_text(_unit(kind), measured.get(kind)) for kind in ("round", *_SUMS)]
        rows.append(tuple(map(Cell, (names[method], f"{len(found)} of {len(runs)}", *cells))))
        records += _records(run, method, measured)
    return Table(
        name=name,
        title=f"{run.name}: to {100 * target:g} % accuracy",
        columns=("method", "reached", "rounds", *_SUMS.values()),
        rows=tuple(rows),
        num_settings=1,
        caption=(
            f"The first evaluated round whose accuracy on {_JUDGES[judge]} is at least the target, with the "
            "seconds and bytes of all rounds up to it: mean ± sample standard deviation over the repeats "
            f"that reach it. {_every(run)}Time has compilation in it, where that was not cached."
        ),
        records=tuple(records),
    )


def _taken(
    lines: Iterable[Mapping[str, Any]], judge: str, target: float
) -> dict[str, float] | None:
    """Return round and sums of one repeat where it reaches the target, None if it does not."""
    sums = dict.fromkeys(_SUMS, 0.0)
    for line in lines:
        sent = line.get("communication", {})
        for kind in sums:
            sums[kind] += line.get(kind, 0) if kind == "seconds" else sent.get(kind, 0)
        if line.get(judge, -1) is not None and line.get(judge, -1) >= target:
            return {"round": line["round"], **sums}
    return None


def _unit(kind: str) -> str:
    return f"communication.{kind}" if kind.endswith("bytes") else kind


def _every(run: Run) -> str:
    rounds = run.config.get("evaluate_every", 0)
    return f"Rounds are evaluated every {rounds} rounds. " if rounds > 1 else ""


def _records(run: Run, method: str, measured: Mapping[str, Measurement]) -> list[dict[str, Any]]:
    return [
        {
            "algorithm": method,
            "metric": f"{kind}_to_target",
            "mean": found.mean,
            "std": found.std,
            "num_repeats": len(found.values),
            "values": " ".join(map(repr, found.values)),
        }
        for kind, found in measured.items()
    ]
