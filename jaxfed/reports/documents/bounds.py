"""Plots and tables of FedCT's bounds: convergence (Proposition 1) and sensitivity (Proposition 2).

    convergence-U.png  convergence.csv     delta over t_0 for each m and c (Figure 1), for each |U|
    sensitivity.png    sensitivity.csv     most labels that one example changes, for each |U| and delta

Assumptions and differences from the paper: `jaxfed.training.consensus.consensus` and
`jaxfed.privacy.label_sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.experiment.store.manifest import read_json
from jaxfed.experiment.store.records import read_metrics, read_run
from jaxfed.host.csv_file import write_csv
from jaxfed.privacy.label_sensitivity import BITS_A_ROW, stability_bound
from jaxfed.reports.figures import plots, png
from jaxfed.reports.figures.bound_figures import (
    RATES,
    consensus_bound_figure,
    sensitivity_bound_figure,
)
from jaxfed.reports.figures.style import LINE_STYLES, PALETTE
from jaxfed.training.consensus.consensus import change_probability, rounds_needed

_PRINTED_RATES = (1e-4, 1e-3, 1e-2)
_MOST_COLORS, _MOST_LINES = len(PALETTE), len(LINE_STYLES)


class Wanted(NamedTuple):
    """Parameters of the bounds to draw.

    Fields:
        clients: m, each 3 or more.
        rates: c, for training accuracies 1 - c / t.
        public: |U|.
        deltas: probabilities with which the bounds may fail: labels change, or the sensitivity is larger.
        estimate: labels changed by sampled neighbors, 0 for none; the paper's is 1,500 (s = 3,000 bits).
        changes: (round, share of labels that changed), measured in a run.
    """

    clients: tuple[int, ...]
    rates: tuple[float, ...]
    public: tuple[int, ...]
    deltas: tuple[float, ...]
    estimate: int
    changes: tuple[tuple[int, float], ...] = ()


def of_run(workdir: Path, wanted: Wanted) -> Wanted:
    """Return the parameters with m, |U| and the label changes of a FedCT run, as means over repeats.

    Raises:
        UsageError: there is no run, or it has no consensus of at least three clients.
    """
    if not (workdir / "config.json").is_file():
        raise UsageError(f"{workdir}: no config.json; give a --workdir of launch.run")
    run, lines = read_run(workdir), read_metrics(workdir)
    told = plots.rounds_by_algorithm(
        [line for line in lines if line["algorithm"] == run.algorithm], "consensus_change"
    )
    voters = max((line["voters"] for line in lines if line.get("voters")), default=0)
    labels = read_json(workdir, "partition.json").get("public") if told else None
    if not labels or voters < 3:
        raise UsageError(
            f"{workdir}: Proposition 1 needs 3 or more clients that agree on labels of public examples; this "
            "run has no such consensus"
        )
    changes = tuple((number, measured.mean) for number, measured in next(iter(told.values())))
    return wanted._replace(clients=(voters,), public=(int(np.sum(labels)),), changes=changes)


def write_bounds(folder: Path, wanted: Wanted) -> tuple[list[str], list[str]]:
    """Write plots and tables into `folder`; return printable lines of the two bounds.

    Returns:
        Proposition 1: the least t_0 for each m, c, |U| and delta. Proposition 2: r for each |U|, delta and
        some stability rates e.

    Raises:
        UsageError: a number is out of its range, there are more numbers than distinguishable colors or line
            styles, or the folder cannot be written.
    """
    for name, values, most in (
        ("clients", wanted.clients, _MOST_COLORS),
        ("public", wanted.public, _MOST_COLORS),
        ("rates", wanted.rates, _MOST_LINES),
        ("deltas", wanted.deltas, _MOST_LINES),
    ):
        if not 0 < len(values) <= most:
            raise UsageError(f"--{name}: {len(values)} numbers; use 1 to {most}")
    for name, values, least in (("clients", wanted.clients, 3), ("public", wanted.public, 1)):
        for value in values:
            if value < least:
                raise UsageError(f"--{name}={value}: use integers from {least} on")
    for rate in wanted.rates:
        if not 0 < rate < math.inf:
            raise UsageError(f"--rates={rate}: use numbers above 0")
    for delta in wanted.deltas:
        if not 0 < delta <= 0.5:
            raise UsageError(f"--deltas={delta}: use numbers above 0 and up to 0.5")
    if wanted.estimate < 0:
        raise UsageError(f"--estimate={wanted.estimate}: use integers from 0 on")
    settled = [
        {"m": m, "c": c, "|U|": size, "delta": delta, "t_0": rounds_needed(m, size, c, delta)}
        for size, m, c, delta in product(wanted.public, wanted.clients, wanted.rates, wanted.deltas)
    ]
    changed = [
        {"|U|": size, "delta": delta, "e": rate, "r": stability_bound(size, rate, delta)}
        for size, delta, rate in product(wanted.public, wanted.deltas, _PRINTED_RATES)
    ]
    try:
        for size in wanted.public:
            figure = consensus_bound_figure(wanted.clients, wanted.rates, size, wanted.changes)
            png.write(figure, folder / f"convergence-{size}.png")
        figure = sensitivity_bound_figure(wanted.public, wanted.deltas, wanted.estimate)
        png.write(figure, folder / "sensitivity.png")
        tables = {"convergence": _convergence(wanted), "sensitivity": _sensitivities(wanted)}
        for name, rows in tables.items():
            listed = list(rows)
            write_csv(folder / f"{name}.csv", listed[0], listed)
    except OSError as error:
        raise UsageError(f"--out={folder}: {error.filename}: {error.strerror}") from error
    return list(map(_line, settled)), list(map(_line, changed))


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{key} = {value:,}" for key, value in row.items())


def _convergence(wanted: Wanted) -> Iterable[dict[str, Any]]:
    """Yield the rows of convergence.csv, with about ten values of t_0 per decade."""
    for size, m, c in product(wanted.public, wanted.clients, wanted.rates):
        for t in np.unique(np.geomspace(max(1, int(np.ceil(2 * c))), 1e6, 61).astype(int)):
            delta = change_probability(m, size, int(t), c)
            yield {"num_public": size, "num_clients": m, "c": c, "rounds": t, "delta": delta}


def _sensitivities(wanted: Wanted) -> Iterable[dict[str, Any]]:
    for size, delta, rate in product(wanted.public, wanted.deltas, RATES[::5]):
        rows = stability_bound(size, float(rate), delta)
        yield {
            "num_public": size,
            "delta": delta,
            "stability_rate": f"{rate:.6g}",
            "rows": rows,
            "bits": BITS_A_ROW * rows,
            "trivial_rows": size,
        }
