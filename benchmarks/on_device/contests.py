"""Kernels and rounds on a device, each as a share of the device's limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import jax
import numpy as np

from benchmarks import inputs
from benchmarks.catalog import BENCHMARKS
from benchmarks.timing.contest import Contest, Work, run_contest
from benchmarks.timing.limits import Limits, machine_limits
from benchmarks.timing.record import as_line
from jaxfed.kernels import hamming, knn

NUM_BITS, NUM_NEIGHBORS = 4096, 10
SMALL_POINTS, SMALL_BITS = 200, 64
GOAL_SECONDS = {100_000: 0.25}  # exact 10-NN, 4096 bits, on an H200


def limits(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """The device's rates, the reference of all others; empty for a small run."""
    del known
    measured = Limits({}, 0.0) if small else machine_limits()
    for name, rate in measured.rates.items():
        print(f"{name} {rate:.4g}/s")
    return {"limits": measured.rates}


def neighbors(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """Each implementation of `hamming_knn` at 10,000 and 100,000 points; counts differences from matmul's."""
    return _contested(_neighbors(small, known), known)


def _neighbors(small: bool, known: dict[str, float]) -> Iterator[Contest]:
    num_bits = SMALL_BITS if small else NUM_BITS
    for n in (SMALL_POINTS,) if small else (10_000, 100_000):
        codes = inputs.codes(n, num_bits, "features")
        expected = _expected(codes)
        for backend in hamming.BACKENDS:
            counts_bits = backend == "popcount" or jax.default_backend() == "cpu"
            operation = "popcount_bits" if counts_bits else "matmul_int8_ops"
            yield Contest(
                task=f"exact Hamming 10-NN, {backend}",
                case={"n": n, "num_bits": num_bits},
                ours=partial(knn.hamming_knn, codes, NUM_NEIGHBORS, backend=backend),
                work=Work((1 if counts_bits else 2) * n * n * num_bits, operation)
                if operation in known
                else None,
                figures=partial(_unlike, expected, GOAL_SECONDS.get(n)),
                at_most={"neighbors unlike matmul's": 0, "of the goal": 1},
            )


def _expected(codes: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    return jax.device_get(knn.hamming_knn(codes, NUM_NEIGHBORS, backend="matmul"))


def _unlike(
    expected: tuple[np.ndarray, np.ndarray], goal: float | None, found: Any, seconds: float
) -> dict[str, float]:
    wrong = sum(int(np.sum(np.asarray(x) != y)) for x, y in zip(found, expected, strict=True))
    return {"neighbors unlike matmul's": wrong} | ({"of the goal": seconds / goal} if goal else {})


def kernels(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """Contests of `launch.bench` on projection, neighbors, graph and propagation, with installed peers."""
    names = ("lsh", "knn", "cosine_knn", "graph", "label_propagation", "xclp")
    if small:
        return _contested(islice(BENCHMARKS["lsh"](False), 1), known)
    return _contested((contest for name in names for contest in BENCHMARKS[name](True)), known)


def rounds(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """FedAvg rounds; on an accelerator also that of XCLP's A.2 with CIFAR-10's sizes."""
    contests = BENCHMARKS["round"](not small)
    return _contested(islice(contests, 1) if small else contests, known)


def learners(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """FedCT's networks and an audit's shadow models, compared with PyTorch; forests run on a CPU only."""
    networks = islice(BENCHMARKS["learners"](not small), 1)
    shadows = BENCHMARKS["shadow_models"](True) if not small else ()
    return _contested(chain(networks, shadows), known)


def _contested(contests: Iterable[Contest], known: dict[str, float]) -> dict[str, Any]:
    """Rows of contests; a failed contest has a row with its error, and the others still run."""
    rows, errors = [], 0
    for contest in contests:
        case = {"task": contest.task, "case": contest.case}
        print(f"{contest.task} {contest.case}", flush=True)  # in case it ends the process
        try:
            row = run_contest(contest, _with_unknown(contest, known))
        except Exception as error:
            errors += 1
            lines = str(error).splitlines() or [""]
            row = {**case, "error": f"{type(error).__name__}: {lines[0][:500]}"}
            print(f"  failed: {row['error']}", flush=True)
        else:
            errors += any(
                figure["at_most"] == 0 and figure["measured"] > 0
                for figure in row.get("figures", {}).values()
            )
            print(f"  {as_line(row)}", flush=True)
        rows.append(row)
    return {"contests": rows, "errors": errors}


def _with_unknown(contest: Contest, known: dict[str, float]) -> dict[str, float]:
    """The known rates, and placeholders for unmeasured ones, as with --small."""
    unknown = {contest.work.limit: float("inf")} if contest.work else {}
    return unknown | known
