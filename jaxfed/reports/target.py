"""Rounds, seconds and bytes that each method takes to a target accuracy."""

from collections.abc import Iterable
from typing import Any

from jaxfed.algorithms import declaration_of
from jaxfed.errors import UsageError
from jaxfed.experiment.run.summary import accumulated
from jaxfed.experiment.store.records import Run, measure, read_metrics
from jaxfed.reports.names import measurement_text, methods_of
from jaxfed.reports.tables import Cell, Table, record_of

# Accuracy of a round's state, the first one that a run has -> of which examples.
_JUDGES = {"round_test_accuracy": "the test set", "validation_accuracy": "validation examples"}
_KINDS = {
    "round": "rounds",
    "simulated_seconds": "simulated",  # cumulative in every line, if there are some
    "seconds": "seconds",
    "communication.upload_bytes": "upload",
    "communication.download_bytes": "download",
}


def target_table(run: Run, target: float, name: str) -> Table:
    """Return a finished run's methods against what they take to a target, over the repeats that reach it.

    A repeat reaches it in the first evaluated round whose accuracy is at least the target, of the test set if
    rounds are evaluated on it (`evaluate_test`), else of validation examples. Seconds and bytes, of all
    clients, are sums over the rounds up to this one. One-shot methods have a row of dashes.

    Raises:
        UsageError: the run has no accuracies of rounds.
    """
    lines = read_metrics(run.workdir)
    judge = next((metric for metric in _JUDGES if any(metric in line for line in lines)), None)
    if judge is None:
        if all(declaration_of(run.algorithm_of(method)).one_shot for method in run.results):
            raise UsageError(
                f"--target={target:g}: {run.name} has one-shot methods only, and these have no rounds to "
                "reach a target in; leave --target out"
            )
        raise UsageError(
            f"--target={target:g}: {run.name} has no accuracies of rounds; config.evaluate_test=true, or "
            "validation examples, with config.evaluate_every, make them"
        )
    is_timed = any("simulated_seconds" in line for line in lines)
    kinds = {k: v for k, v in _KINDS.items() if k != "simulated_seconds" or is_timed}
    methods, rows, records = methods_of([run]), [], []
    for method in run.results:
        repeats = dict[int, list[dict[str, Any]]]()
        for line in lines:
            if line["algorithm"] == method:
                repeats.setdefault(line["repeat"], []).append(line)
        reached = [taken for each in repeats.values() if (taken := _taken(each, judge, target))]
        measured = {
            kind: measure([taken.get(kind, 0) for taken in reached]) for kind in kinds if reached
        }
        is_judged = any(judge in line for each in repeats.values() for line in each)
        number = f"{len(reached)} of {len(repeats)}" if is_judged else "–"
        cells = [measurement_text(kind, measured.get(kind)) for kind in kinds]
        rows.append([*map(Cell, (methods.name(method), number, *cells))])
        records += [
            record_of(run, method, f"{kind.rpartition('.')[2]}_to_target", found)
            for kind, found in measured.items()
        ]
    every = run.config.get("evaluate_every", 0)
    return Table(
        name=name,
        title=f"{run.name}: to {100 * target:g} % accuracy",
        columns=("method", "reached", *kinds.values()),
        rows=rows,
        num_settings=1,
        caption=(
            f"The first evaluated round whose accuracy on {_JUDGES[judge]} is at least the target, with the "
            "seconds and bytes of all rounds up to it: mean ± sample standard deviation over the repeats "
            f"that reach it. {f'Rounds are evaluated every {every} rounds. ' * (every > 1)}Time has "
            "compilation in it, where that was not cached. –: not reached, or rounds have no accuracy."
        ),
        records=records,
    )


def _taken(lines: Iterable[dict[str, Any]], judge: str, target: float) -> dict[str, float] | None:
    """Return round and sums of one repeat where it reaches the target, None if it does not."""
    so_far: dict[str, Any] = {}
    for line in lines:
        so_far = accumulated(so_far, line)
        if (accuracy := so_far.get(judge)) is not None and accuracy >= target:
            return {**so_far, "round": line["round"]}
    return None
