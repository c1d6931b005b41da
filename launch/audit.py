"""Run one experiment and attack its methods' messages by membership inference.

python -m launch.audit --config=ml_collections_configs/audit.py[:VARIANT] --workdir=DIR
    [--overwrite] [--config.KEY=VALUE ...]

DIR has the files of launch.run and, in DIR/audit, a table with each method's accuracy and the AUC of the
strongest attack on its messages (vulnerability.csv, .md and .png), and all attacks. An unfinished audit
resumes. A workdir whose rounds were run without an audit is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from jaxfed.host.interruption import Interruption

from . import entry, run

if TYPE_CHECKING:
    from jaxfed.audit.audit import Audit

flags.adopt_module_key_flags(run)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the experiment and its audit."""
    return run.main(arguments, overrides, interruption, attachment=_audit)


def _audit() -> type[Audit]:
    from jaxfed.audit.audit import Audit

    return Audit


if __name__ == "__main__":
    entry.start(main)
