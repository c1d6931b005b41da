"""Kernels and rounds on a device, each as a share of what the device can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import knn, lsh
from launch.benchmarks import BENCHMARKS, inputs
from launch.benchmarks.contest import MIN_ROUNDS, Contest, run_contest
from launch.benchmarks.limits import Limits, machine_limits
from launch.benchmarks.record import as_line

NUM_BITS, NUM_NEIGHBORS = 4096, 10
SMALL_POINTS, SMALL_BITS = 200, 64
GOAL_SECONDS = {100_000: 0.25}  # exact 10-NN, 4096 bits, on an H200


def limits(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """The device's own rates, that all else is held against; none of a small run."""
    del known
    measured = Limits({}, 0.0) if small else machine_limits()
    for name, rate in measured.rates.items():
        print(f"{name} {rate:.4g}/s")
    return {"limits": measured.rates}


def neighbors(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """Every way that `hamming_knn` has, at 10,000 and 100,000 points; what differs from XLA's is counted."""
    return _contested(_neighbors(small, known), known)


def _neighbors(small: bool, known: dict[str, float]) -> Iterator[Contest]:
    num_bits = SMALL_BITS if small else NUM_BITS
    for n in (SMALL_POINTS,) if small else (10_000, 100_000):
        codes = inputs.codes(n, num_bits, "features")
        expected = jax.device_get(knn.hamming_knn(codes, NUM_NEIGHBORS, backend="matmul"))
        for backend in knn.BACKENDS:
            counts_bits = "popcount" in backend or jax.default_backend() == "cpu"
            wanted = "matmul_bf16_flops" if "bfloat16" in backend else "matmul_int8_ops"
            operation = "popcount_bits" if counts_bits else wanted
            yield Contest(
                task=f"exact Hamming 10-NN, {backend}",
                case={"n": n, "num_bits": num_bits},
                ours=partial(knn.hamming_knn, codes, NUM_NEIGHBORS, backend=backend),
                operations=(1 if counts_bits else 2) * n * n * num_bits
                if operation in known
                else 0,
                operation=operation,
                figures=partial(_unlike, expected, GOAL_SECONDS.get(n)),
                at_most={"neighbors unlike XLA's": 0, "of the goal": 1},
            )


def _unlike(
    expected: tuple[np.ndarray, np.ndarray], goal: float | None, found: Any, seconds: float
) -> dict[str, float]:
    wrong = sum(int(np.sum(np.asarray(x) != y)) for x, y in zip(found, expected, strict=True))
    return {"neighbors unlike XLA's": wrong} | ({"of the goal": seconds / goal} if goal else {})


def tiles(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """The fused search alone, by other shapes of its tiles: which of them a device likes."""
    return _contested(_tiles(small, known), known)


def _tiles(small: bool, known: dict[str, float]) -> Iterator[Contest]:
    from jaxfed.kernels.fused import gpu, tpu

    n, num_bits = (SMALL_POINTS, SMALL_BITS) if small else (100_000, NUM_BITS)
    codes = inputs.codes(n, num_bits, "features")
    signs = jnp.where(lsh.unpack_bits(codes), jnp.int8(1), jnp.int8(-1))
    operands = signs, signs, jnp.zeros(n, jnp.bool_), jnp.int32(0)
    search: Callable[..., jax.Array]
    shapes: Iterable[Any]
    if jax.default_backend() == "tpu":
        sizes = [(128, 512), (256, 512), (256, 1024), (512, 512), (512, 1024)]
        search = tpu.search
        shapes = [tpu.Tile(*size, depth) for size in sizes for depth in (1024, 2048)]
    else:
        search = partial(gpu.search, interpret=jax.default_backend() == "cpu")
        shapes = [
            gpu.Tile(),
            gpu.Tile(stages=4),
            gpu.Tile(depth=64, stages=4),
            gpu.Tile(queries=64, warps=4),
            gpu.Tile(queries=64, points=256, warps=4),
            gpu.Tile(points=256),
            gpu.Tile(queries=256, stages=2),
            gpu.Tile(warps=4),
        ]
    for tile in islice(shapes, 1 if small else None):
        compiled = jax.jit(partial(search, k=NUM_NEIGHBORS, num_bits=num_bits, tile=tile))
        yield Contest(
            task="fused search",
            case={"n": n, "num_bits": num_bits, **tile._asdict()},
            ours=partial(compiled, *operands),
            operations=2 * n * n * num_bits if "matmul_int8_ops" in known else 0,
            operation="matmul_int8_ops",
        )


def kernels(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """What `launch.bench` has of projection, neighbors, graph and propagation, peers where installed."""
    names = ("lsh", "knn", "cosine_knn", "graph", "label_propagation", "xclp")
    if small:
        return _contested(islice(BENCHMARKS["lsh"](False), 1), known)
    return _contested((contest for name in names for contest in BENCHMARKS[name](True)), known)


def rounds(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """FedAvg rounds; on an accelerator that of XCLP's A.2 with CIFAR-10's sizes too."""
    contests = BENCHMARKS["round"](not small)
    return _contested(islice(contests, 1) if small else contests, known)


def learners(small: bool, known: dict[str, float]) -> dict[str, Any]:
    """FedCT's networks, and an audit's shadow models, beside PyTorch's; forests are a CPU's affair."""
    networks = islice(BENCHMARKS["learners"](not small), 1)
    shadows = BENCHMARKS["shadow_models"](True) if not small else ()
    return _contested(chain(networks, shadows), known)


def _contested(contests: Iterable[Contest], known: dict[str, float]) -> dict[str, Any]:
    """Rows of contests; what fails has a row that says why, for others may not."""
    rows, errors = [], 0
    for contest in contests:
        case = {"task": contest.task, "case": contest.case}
        print(f"{contest.task} {contest.case}", flush=True)  # in case that it ends the process
        try:
            row = run_contest(contest, MIN_ROUNDS, _with_unknown(contest, known))
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
    """Rates that have not been measured, as with --small, make no shares worth reading."""
    return {"bytes": float("inf"), contest.operation: float("inf"), **known}
