"""Print a client's operations and bytes in a round of each method, with the papers' figures.

python -m launch.costs --config=ml_collections_configs/NAME.py[:VARIANT] [--out=FILE.json]
    [--config.KEY=VALUE ...]

Nothing is trained: operations are from XLA's analysis of the program, bytes from the round's counters. The
methods are the config's `algorithm` and `baselines`. They are compared with ProtoFSSL's Tables 1 and 2. If
clients of any method have models of their own, as in FedCT, only bytes are printed, with FedCT's factor of
67. If no method trains a network, as with trees, there are no parameters to send and no factor.
"""

from __future__ import annotations

import json
from typing import Any

from ml_collections import ConfigDict

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
    from jaxfed.experiment.costs import answers_public
    from jaxfed.experiment.run.environment import describe

    config = opened(_CONFIG.value, overrides)
    report = _answers(config) if answers_public(config) else _rounds(config)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"environment": describe(), **report}, indent=1) + "\n")


def _rounds(config: ConfigDict) -> dict[str, Any]:
    """Print and return the costs of methods with one model."""
    from jaxfed.experiment.costs import MethodCosts, method_costs

    def line(costs: MethodCosts) -> str:
        ours = [
            (own.operations, own.upload_bytes + own.download_bytes)
            for own in (costs.one_pass, costs.as_run)
        ]
        cells = (_cell(pair) for pair in (*ours, costs.formula, costs.paper))
        return f"{costs.method:16s} " + " ".join(cells) + f" {costs.as_run.steps:7.1f}"

    print("A client in a round: GFLOP, and MB sent and received")
    print(f"{'method':16s} " + " ".join(f"{name:>21s}" for name in _COLUMNS) + f" {'steps':>7s}")
    rows = []
    for costs in method_costs(config):
        print(line(costs), flush=True)
        rows.append(costs)
    print(
        "One pass: forward and back over all that a client has, once. As run: the config's epochs."
    )
    print("The paper counts one epoch of forward passes.")
    return {"methods": [_as_json(row) for row in rows]}


def _answers(config: ConfigDict) -> dict[str, Any]:
    """Print and return the costs of methods whose clients label public examples."""
    from jaxfed.experiment.costs import answer_costs

    costs = answer_costs(config)
    print("A client in a round in which it sends: bytes, and how many fewer than parameters")
    if costs["num_parameters"] is None:
        print("No method here trains a network, so there are no parameters to compare with.")
    print(f"{'method':24s} {'sends':>12s} {'receives':>12s} {'factor':>8s}")
    for row in costs["methods"]:
        sent = f"{row['upload_bytes']:12.0f} {row['download_bytes']:12.0f}"
        print(f"{row['method']:24s} {sent} {_factor(row['factor']):>8s}")
    counted = f"{costs['num_public']} examples of {costs['num_classes']} classes"
    if costs["num_parameters"] is not None:
        counted += (
            f", {costs['num_parameters']} parameters; FedCT's paper, of labels of 32 bits: 67"
        )
    print(counted)
    return costs


def _factor(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.4g}"


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
