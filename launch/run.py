"""Runs one experiment: a config's algorithm and its baselines, over its repeats.

python -m launch.run --config=ml_collections_configs/NAME.py[:VARIANT] --workdir=DIR
    [--overwrite] [--config.KEY=VALUE ...]

A method whose loss is no longer finite stops, the others go on; the run then exits with 1.
A finished workdir is left as it is; an unfinished one resumes; one made by another config is
refused.
"""

from __future__ import annotations

import sys

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption
from launch import entry

_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "A config file and its variant, FILE.py[:VARIANT]; --config.KEY=VALUE sets a key.",
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go; made if it does not exist.")
_OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Delete the results in --workdir and start afresh."
)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Check, then prepare, then make the workdir: a mistake leaves nothing behind."""
    if arguments:
        raise UsageError(f"{arguments[0]}: no such argument; see --helpshort")
    if not _CONFIG.value or not _WORKDIR.value:
        missing = "--workdir=DIR" if _CONFIG.value else "--config=ml_collections_configs/NAME.py"
        raise UsageError(f"{missing} is missing")

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.api.conduct import conduct
    from jaxfed.config import check
    from jaxfed.config import file as config_file
    from jaxfed.experiment import workdir
    from jaxfed.experiment.progress import Progress

    config = config_file.load(_CONFIG.value, overrides)
    check.check(config)
    settings = config.to_dict()
    place = workdir.location(_WORKDIR.value)
    if not _OVERWRITE.value and workdir.is_finished(place, settings):
        print(f"{place} is finished; --overwrite runs it again")
        return 0
    with Progress(settings) as progress:
        summary = conduct(config, place, progress, interruption, overwrite=_OVERWRITE.value)
    progress.show_results(summary["algorithms"], str(place))
    for line in summary.get("diverged", ()):
        print(f"jaxfed: {line}", file=sys.stderr)
    return 1 if "diverged" in summary else 0


if __name__ == "__main__":
    entry.start(main)
