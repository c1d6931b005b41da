"""Plot the bounds of FedCT's Proposition 1 (its Figure 1) and Proposition 2, for any sizes or those of a run.

python -m launch.bounds [WORKDIR] [--out=DIR] [--clients=5,50,100] [--rates=1,2,10] [--public=10000,50000]
    [--deltas=0.05,1e-5] [--estimate=1500]

Nothing is trained. Two bounds are printed: the rounds t_0 after which labels have settled (Proposition 1),
and the number r of labels that one private example changes, for learners of a few stability rates
(Proposition 2, whose proof does not hold: jaxfed/privacy/label_sensitivity.py). Tables:

    convergence.csv    num_public |U|, num_clients m, c (--rates: training accuracies are 1 - c / t), rounds
                       t_0; delta: the probability, at most, with which labels change afterwards
    sensitivity.csv    num_public |U|; delta: the probability with which the bound may fail; stability_rate e:
                       the probability that the label of one public example changes; rows: at most r labels
                       change; bits: the same in one-hot rows, 2 r; trivial_rows: |U|, which always holds

With the WORKDIR of a FedCT run, m and |U| are those of the run, and the share of labels that changed in each
of its rounds is drawn beside the bound. Plots then go to WORKDIR/bounds if no DIR is given.
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

_OUT = entry.out_flag("Where plots and tables go; WORKDIR/bounds if not given.")
_CLIENTS = flags.DEFINE_string("clients", "5,50,100", "m, numbers of clients, 3 or more each.")
_RATES = flags.DEFINE_string("rates", "1,2,10", "c: training accuracies are 1 - c / t.")
_PUBLIC = flags.DEFINE_string("public", "10000,50000", "|U|, numbers of public examples.")
_DELTAS = flags.DEFINE_string("deltas", "0.05,1e-5", "Probabilities with which a bound may fail.")
_ESTIMATE = flags.DEFINE_integer(
    "estimate",
    1500,
    "Labels that an estimate of sensitivity says change, drawn beside the bounds; the paper's are 1,500 of "
    "Fashion-MNIST's 50,000 (s = 3,000 bits). 0 draws none.",
)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> None:
    """Plot and print both bounds."""
    del interruption  # nothing is saved that a signal could spoil
    if overrides:
        raise UsageError(f"--config.{overrides[0]}: bounds have no config; give a WORKDIR or flags")
    if len(arguments) > 1 or (not arguments and not _OUT.value):
        raise UsageError("give one WORKDIR of launch.run, or --out=DIR")

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.reports.documents.bounds import Wanted, of_run, write_bounds

    wanted = Wanted(
        _numbers("clients", _CLIENTS.value, int),
        _numbers("rates", _RATES.value, float),
        _numbers("public", _PUBLIC.value, int),
        _numbers("deltas", _DELTAS.value, float),
        _ESTIMATE.value,
    )
    workdirs = [location(text, "WORKDIR") for text in arguments]
    folder = location(_OUT.value, "--out") if _OUT.value else workdirs[0] / "bounds"
    if workdirs:
        wanted = of_run(workdirs[0], wanted)
    settled, changed = write_bounds(folder, wanted)
    print("Proposition 1: labels change after round t_0 with a probability of delta at most:")
    print("\n".join(settled))
    print(
        "Proposition 2: of a learner with stability rate e one example changes more than r labels with a "
        "probability of delta at most:"
    )
    print("\n".join(changed))
    print(f"plots and tables are in {folder}")


def _numbers(name: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--{name}={text}: use numbers, with commas between them") from None


if __name__ == "__main__":
    entry.start(main)
