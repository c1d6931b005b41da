"""What entries for one experiment share: its flags, and the way from them to its results."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption

_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "A config file and its variant, FILE.py[:VARIANT]; --config.KEY=VALUE sets a key.",
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go; made if it does not exist.")
_OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Delete the results in --workdir and start afresh."
)


def conducted(
    arguments: list[str], overrides: list[str], interruption: Interruption, *, audited: bool = False
) -> int:
    """Check, then prepare, then make the workdir: a mistake leaves nothing behind.

    Returns the exit status: 1 where a method has diverged, or is left without models, now or when it ran.
    """
    if arguments:
        raise UsageError(f"{arguments[0]}: no such argument; see --helpshort")
    if not _CONFIG.value or not _WORKDIR.value:
        missing = "--workdir=DIR" if _CONFIG.value else "--config=ml_collections_configs/NAME.py"
        raise UsageError(f"{missing} is missing")

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.api.conduct import conduct
    from jaxfed.config import check
    from jaxfed.config import file as config_file
    from jaxfed.experiment import audit, workdir
    from jaxfed.experiment.progress import Progress
    from jaxfed.experiment.records import read_audit, read_run
    from jaxfed.experiment.remedy import IN_A_SWEEP, OF_A_COMMAND, OF_A_SWEEP, remedied
    from jaxfed.experiment.summary import complaints
    from jaxfed.host.location import location

    def status(summary: Mapping[str, Any]) -> int:
        lines = complaints(summary)
        for line in lines:
            print(f"jaxfed: {line}", file=sys.stderr)
        return 1 if lines else 0

    config = config_file.load(_CONFIG.value, overrides)
    check.check(config)
    settings = config.to_dict()
    place = location(_WORKDIR.value, "--workdir")
    with remedied(OF_A_SWEEP if IN_A_SWEEP in os.environ else OF_A_COMMAND):
        if not _OVERWRITE.value and workdir.is_finished(place, settings):
            if audited:
                audit.check_audited(place)
                print(f"the audit is in {place / 'audit'}")
            print(f"{place} is finished; --overwrite runs it again")
            return status(read_run(place).summary or {})
        with Progress(settings) as progress:
            summary = conduct(
                config, place, progress, interruption, overwrite=_OVERWRITE.value, audited=audited
            )
    from jaxfed.reports.method_names import method_names  # with matplotlib, loaded by now

    names = method_names([read_run(place)])
    progress.show_results(summary["algorithms"], str(place), names)
    if audited:
        found = read_audit(place)
        assert found is not None  # it has just been written
        progress.show_audit(found["methods"], str(place / "audit"), names)
    return status(summary)
