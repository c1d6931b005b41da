"""Remarks of runs in tables: methods whose result does not depend on their characteristic step."""

from collections.abc import Mapping, Sequence

from jaxfed.experiment.store.records import Run

MARK = " ‡"


def mark(run: Run | None, method: str) -> str:
    """Return the mark of a method that the run, or the one that stands for it, has a remark on, else ""."""
    if run is None:
        return ""
    return MARK * any(name == method for name, _, _ in _parts(run.reused.get(method, run)))


def marked(run: Run, names: Mapping[str, str]) -> dict[str, str]:
    """Return the display name of each method with its mark, for tables in a terminal or notebook."""
    return {method: names.get(method, method) + mark(run, method) for method in run.results}


def note(runs: Sequence[Run], names: Mapping[str, str]) -> str:
    """Return the footnote on marked methods: of each reason the methods, with the repeats of a single run."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for method, repeats, reason in _parts(run):
            name = names.get(method, method)
            told = f"{name} in {repeats}" if len(runs) == 1 else name
            found.setdefault(reason, {})[told] = None
    return "".join(f"{MARK[1:]} {'; '.join(told)}: {why}. " for why, told in found.items())


def _parts(run: Run) -> list[tuple[str, str, str]]:
    """Return method, repeats and reason of each remark, `METHOD in repeats 1, 3: reason`."""
    split = [line.partition(": ") for line in run.remarks]
    return [(*where.rpartition(" in ")[::2], reason) for where, _, reason in split]
