"""Plot and print the bound of FedCT's Proposition 1 (its Figure 1), for any sizes.

python -m launch.bounds --out=DIR [--clients=5,50,100] [--rates=1,2,10] [--public=10000,50000]
    [--deltas=0.05,1e-5]

Nothing is trained. The rounds t_0 are printed after which labels have settled. DIR gets a figure for each
|U|, and a table:

    convergence.csv    num_public |U|, num_clients m, c (--rates: training accuracies are 1 - c / t), rounds
                       t_0; delta: the probability, at most, with which labels change afterwards

Proposition 2, whose proof does not hold: `jaxfed/privacy/label_sensitivity.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import location

from . import entry

Number = TypeVar("Number", int, float)

_OUT = entry.out_flag("Where plots and the table go.")
_CLIENTS = flags.DEFINE_string("clients", "5,50,100", "m, numbers of clients, 3 or more each.")
_RATES = flags.DEFINE_string("rates", "1,2,10", "c: training accuracies are 1 - c / t.")
_PUBLIC = flags.DEFINE_string("public", "10000,50000", "|U|, numbers of public examples.")
_DELTAS = flags.DEFINE_string("deltas", "0.05,1e-5", "Probabilities with which a bound may fail.")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> None:
    """Print and plot the bound."""
    del interruption  # nothing is saved that a signal could spoil
    if overrides:
        raise UsageError(f"--config.{overrides[0]}: bounds have no config; use flags")
    entry.refuse(arguments)
    entry.require(out=_OUT.value)

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.reports.bounds import write_bounds

    folder = location(_OUT.value, "--out")
    settled = write_bounds(
        folder,
        _numbers("clients", _CLIENTS.value, int),
        _numbers("rates", _RATES.value, float),
        _numbers("public", _PUBLIC.value, int),
        _numbers("deltas", _DELTAS.value, float),
    )
    print("Labels change after round t_0 with a probability of delta at most:")
    print("\n".join(settled))
    print(f"plots and table are in {folder}")


def _numbers(name: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--{name}={text}: use numbers, with commas between them") from None


if __name__ == "__main__":
    entry.start(main)
