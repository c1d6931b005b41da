"""Print a client's operations and bytes in a round of each method, with the papers' figures.

python -m launch.costs --config=ml_collections_configs/NAME.py[:VARIANT] [--out=FILE.json]
    [--config.KEY=VALUE ...]

Nothing is trained: operations are from XLA's analysis of the program, bytes from the round's counters. The
methods are the config's `algorithm` and `baselines`, which train one shared network; they are compared with
ProtoFSSL's Tables 1 and 2. What any run sends is in its summary (`communication`).
"""

from __future__ import annotations

import json

from jaxfed.host.interruption import Interruption
from jaxfed.host.location import file_to_write

from . import entry

_CONFIG = entry.config_flag()
_OUT = entry.out_flag("Write all figures to this JSON file.")
_COLUMNS = ("one pass", "as run", "paper's formula", "paper's figure")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> None:
    """Count each method in turn and print it."""
    del interruption  # nothing is saved that a signal could damage
    entry.refuse(arguments)
    entry.require(config=_CONFIG.value)
    out = file_to_write(_OUT.value, "--out") if _OUT.value else None

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.config.check import opened
    from jaxfed.experiment.costs import method_costs
    from jaxfed.experiment.run.environment import describe

    config = opened(_CONFIG.value, overrides)
    print("A client in a round: GFLOP, and MB sent and received")
    print(f"{'method':16s} " + " ".join(f"{name:>21s}" for name in _COLUMNS) + f" {'steps':>7s}")
    rows = []
    for costs in method_costs(config):
        ours = [
            (cost.operations, cost.upload_bytes + cost.download_bytes)
            for cost in (costs.one_pass, costs.as_run)
        ]
        cells = " ".join(_cell(pair) for pair in (*ours, costs.formula, costs.paper))
        print(f"{costs.method:16s} {cells} {costs.as_run.steps:7.1f}", flush=True)
        rows.append(costs)
    print(
        "One pass: forward and back over all that a client has, once. As run: the config's epochs."
    )
    print("The paper counts one epoch of forward passes.")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        report = {"environment": describe(), "methods": [_as_json(row) for row in rows]}
        out.write_text(json.dumps(report, indent=1) + "\n")


def _cell(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return f"{'-':>10s} {'-':>10s}"
    return f"{pair[0] / 1e9:10.4g} {pair[1] / 1e6:10.4g}"


def _as_json(costs: object) -> object:
    """NamedTuples as objects."""
    if hasattr(costs, "_asdict"):
        return {key: _as_json(value) for key, value in costs._asdict().items()}
    return costs


if __name__ == "__main__":
    entry.start(main)
