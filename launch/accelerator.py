"""Measure an accelerator, in pieces of at most ten minutes each.

    python -m launch.accelerator --workdir=DIR [--pieces=NAME,...] [--limit_s=SECONDS] [--small]

The first pieces check correctness: tests that hold on every device, and labels and neighbors compared with a
CPU's. The others measure:

  * kernels, each as a share of the device's limit;
  * rounds and FedCT's networks, compared with PyTorch if it is installed;
  * the joint graph of as many (synthetic) points as FEMNIST has;
  * cells of XCLP's Table 4 and ProtoFSSL's Table 3 (data in $JAXFED_DATA), one seed each.

Every piece runs in a separate process and writes DIR/NAME.json with device, versions and commit.

The same command resumes after a stop: a piece with a file is not run again. Only one process at a time works
in DIR; a piece that survives `kill -9` of its command counts as one. With --limit_s a piece that would not
fit is not started; an experiment stops at the limit and resumes next time. If a piece fails, wholly or in
part, the exit status is 1, and later pieces still run. A piece that failed as a whole is run again next time.
A CPU is not measured; with --small it runs all pieces at tiny sizes, as a test.
"""

from __future__ import annotations

import math

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import folder_to_write

from . import entry

_WORKDIR = entry.workdir_flag()
_PIECES = flags.DEFINE_list("pieces", [], "Which of them; default all.")
_LIMIT = flags.DEFINE_float("limit_s", None, "Seconds that this call may take.", lower_bound=0)
_SMALL = flags.DEFINE_bool("small", False, "Next to nothing of every piece, on any device.")
_MEASURE = flags.DEFINE_string("measure", None, "The one piece of this process; for its own use.")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the pieces without results, one by one."""
    del interruption  # a stopped piece is run again, or resumes
    entry.refuse([*arguments, *overrides])

    # Imported late, so that --helpshort and a mistyped flag get a fast answer.
    from benchmarks.on_device import PIECES
    from benchmarks.on_device.session import Results, measure, run_pieces

    if _LIMIT.value is not None and not math.isfinite(_LIMIT.value):
        raise UsageError(f"--limit_s={_LIMIT.value:g}: use numbers from 0 on")
    measured = [name for name, piece in PIECES.items() if piece.measure]
    if _MEASURE.value is not None and _MEASURE.value not in measured:
        raise UsageError(f"--measure={_MEASURE.value}: choose one of {', '.join(measured)}")
    for name in _PIECES.value:
        if name not in PIECES:
            raise UsageError(f"--pieces={name}: choose one of {', '.join(PIECES)}")
    entry.require(workdir=_WORKDIR.value)
    results = Results(folder_to_write(_WORKDIR.value, "--workdir"), _SMALL.value)
    if _MEASURE.value:
        measure(PIECES[_MEASURE.value], results)
        return 0
    wanted = {*_PIECES.value, "limits"} if _PIECES.value else PIECES.keys()
    chosen = [piece for name, piece in PIECES.items() if name in wanted]
    return run_pieces(chosen, results, _LIMIT.value)


if __name__ == "__main__":
    entry.start(main)
