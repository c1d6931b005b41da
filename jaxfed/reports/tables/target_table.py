"""Rounds, seconds and bytes that each method takes to a target accuracy."""

from collections.abc import Iterable
from typing import Any

from jaxfed.algorithms import declaration_of
from jaxfed.errors import UsageError
from jaxfed.experiment.run.summary import accumulated
from jaxfed.experiment.store.records import Run, measure, read_metrics
from jaxfed.reports.tables.display_names import measurement_text
from jaxfed.reports.tables.method_names import method_names
from jaxfed.reports.tables.tables import Cell, Table, record_of

# Accuracy of a round's state, the first one that a run has -> of which examples.
_JUDGES = {"round_test_accuracy": "the test set", "validation_accuracy": "validation examples"}
_SUMS = {
    "seconds": "seconds",
    "communication.upload_bytes": "upload",
    "communication.download_bytes": "download",
}
_TIME = {"simulated_seconds": "simulated"}  # cumulative in every line, if there are some
_NO_ROUNDS = " –: no accuracies of rounds; a one-shot method has no rounds to reach a target in."


def target_table(run: Run, target: float, name: str) -> Table:
    """Return a run's methods against what they take to a target accuracy, over the repeats that reach it.

    A repeat reaches it in the first evaluated round whose accuracy is at least the target, of the test set if
    rounds are evaluated on it (`evaluate_test`), else of validation examples. Seconds and bytes are sums over
    the rounds up to this one; bytes are those of all clients. Simulated seconds are those of a run that
    has them. A method without accuracies of rounds, such as a one-shot method, has a row of dashes.

    Args:
        run: finished.
        target: in [0, 1].
        name: of the CSV file.

    Raises:
        UsageError: the run has no accuracies of rounds.
    """
    lines = read_metrics(run.workdir)
    judge = next((metric for metric in _JUDGES if any(metric in line for line in lines)), None)
    if judge is None and all(
        declaration_of(run.algorithm_of(name)).one_shot for name in run.results
    ):
        raise UsageError(
            f"--target={target:g}: {run.name} has one-shot methods only, and these have no rounds to reach a "
            "target in; leave --target out"
        )
    if judge is None:
        raise UsageError(
            f"--target={target:g}: {run.name} has no accuracies of rounds; config.evaluate_test=true, or "
            "validation examples, with config.evaluate_every, make them"
        )
    kinds = {**(_TIME if any(k in line for line in lines for k in _TIME) else {}), **_SUMS}
    names = method_names([run])
    rows, records = [], []
    unjudged = False
    for method in run.results:
        runs = dict[int, list[dict[str, Any]]]()
        for line in lines:
            if line["algorithm"] == method:
                runs.setdefault(line["repeat"], []).append(line)
        reached = [taken for each in runs.values() if (taken := _taken(each, judge, target))]
        measured = {
            k: measure([taken[k] for taken in reached]) for k in ("round", *kinds) if reached
        }
        cells = [measurement_text(kind, measured.get(kind)) for kind in ("round", *kinds)]
        is_judged = any(judge in line for each in runs.values() for line in each)
        unjudged |= not is_judged
        number = f"{len(reached)} of {len(runs)}" if is_judged else "–"
        rows.append(tuple(map(Cell, (names[method], number, *cells))))
        records += [
            record_of(run, method, f"{kind.rpartition('.')[2]}_to_target", found)
            for kind, found in measured.items()
        ]
    return Table(
        name=name,
        title=f"{run.name}: to {100 * target:g} % accuracy",
        columns=("method", "reached", "rounds", *kinds.values()),
        rows=tuple(rows),
        num_settings=1,
        caption=(
            f"The first evaluated round whose accuracy on {_JUDGES[judge]} is at least the target, with the "
            "seconds and bytes of all rounds up to it: mean ± sample standard deviation over the repeats "
            f"that reach it. {_every(run)}Time has compilation in it, where that was not cached"
            f"{'; simulated seconds are those of config.clock' if _TIME.keys() <= kinds.keys() else ''}."
            f"{_NO_ROUNDS * unjudged}"
        ),
        records=tuple(records),
    )


def _taken(lines: Iterable[dict[str, Any]], judge: str, target: float) -> dict[str, float] | None:
    """Return round and sums of one repeat where it reaches the target, None if it does not."""
    so_far: dict[str, Any] = {}
    for line in lines:
        so_far = accumulated(so_far, line)
        accuracy = so_far.get(judge)
        if accuracy is not None and accuracy >= target:
            return {
                "round": line["round"],
                **{kind: so_far.get(kind, 0) for kind in (*_TIME, *_SUMS)},
            }
    return None


def _every(run: Run) -> str:
    rounds = run.config.get("evaluate_every", 0)
    return f"Rounds are evaluated every {rounds} rounds. " if rounds > 1 else ""
