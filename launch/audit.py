"""Runs one experiment and infers membership from what its methods send: accuracy against vulnerability.

python -m launch.audit --config=ml_collections_configs/audit.py[:VARIANT] --workdir=DIR
    [--overwrite] [--config.KEY=VALUE ...]

What launch.run does, and leaves there; beside it DIR/audit has a table of methods on the same clients, each
with its accuracy and the AUC of the strongest attack on its messages (vulnerability.csv, .md and .png), and
all attacks. An unfinished audit resumes; a run that was played without one is refused.
"""

from __future__ import annotations

from absl import flags

from jaxfed.host.interruption import Interruption

from . import entry, one_experiment

flags.adopt_module_key_flags(one_experiment)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run it, and attack what is seen of it."""
    return one_experiment.conducted(arguments, overrides, interruption, audited=True)


if __name__ == "__main__":
    entry.start(main)
