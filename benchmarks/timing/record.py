"""Record of a measurement: a contest's figures as a line, and the environment."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jaxfed.experiment.run.environment import describe
from jaxfed.host.parallel.devices import num_cores

_PACKAGES = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "faiss-cpu",
    "torch",
    "fedjax",
    "drjax",
    "pfl",
    "fluke-fl",
    "fedlab",
    "flwr",
    "ray",
    "cryptography",
    "phe",
    "gmpy2",
)


def as_line(row: dict[str, Any]) -> str:
    """A contest's figures as one line."""
    case = " ".join(f"{key}={value}" for key, value in row["case"].items())
    parts = [f"{row['task']:24s} {case:40s} {1e3 * row['median_seconds']['jaxfed']:9.2f} ms"]
    for name, figure in row.get("figures", {}).items():
        promised = f" (at most {figure['at_most']:g})" if figure["at_most"] is not None else ""
        parts.append(f"{figure['measured']:.3g} {name}{promised}")
    if "share_of_machine_limit" in row:
        rate = row["operations_per_second"]
        parts.append(f"{rate:.3g} {row['operation']}/s = {row['share_of_machine_limit']:.0%}")
    if "share_of_machine_bandwidth" in row:
        share = row["share_of_machine_bandwidth"]
        parts.append(
            f"{share:.0%} of bandwidth" if share <= 1 else f"{share:.1f} x memory, in cache"
        )
    for name, peer in row["peers"].items():
        target = f" (target {peer['target']})" if peer["target"] else ""
        figure = f"{peer['ratio']:.2f} x" if not peer["unreliable"] else "unreliable"
        reason = f": {peer['unreliable']}" if peer["unreliable"] else ""
        milliseconds = 1e3 * row["median_seconds"][name]
        part = peer["scaled_from_part"]
        scaled = f" (scaled up from {part:.2g} of the task)" if part else ""
        parts.append(f"{name}: {milliseconds:.2f} ms{scaled}, {figure}{target}{reason}")
        if name in row["agreement"]:
            parts.append(row["agreement"][name])
    for name, expected in row.get("left_out", {}).items():
        parts.append(f"{name}: left out, would take {expected:.0f} s")
    return " | ".join(parts)


def environment() -> dict[str, Any]:
    """The machine and the package versions of a measurement."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**describe(), "cores_allowed": num_cores(), "versions": versions}
