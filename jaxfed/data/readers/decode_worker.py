"""One process of a parallel decode: `python -m jaxfed.data.readers.decode_worker JOB`, started by
`tfds_source`.

A separate program, because `multiprocessing` would import the user's main module again in every process.
A script without a main guard, a notebook or a prompt could then not load a large set.
"""

import errno
import json
import sys
from pathlib import Path

import numpy as np

from jaxfed.data.readers.tfds_source import decode_range
from jaxfed.host import storage
from jaxfed.host.interruption import end_with


def main(job: str) -> int:
    """Decode the range that the job (a JSON list) names; write its arrays to the `.npz` named last.

    Returns: the exit status, ENOSPC if the disk is full.
    """
    parent, folder, split, keys, start, stop, target = json.loads(job)
    end_with(parent)
    arrays = decode_range(Path(folder), split, keys, start, stop)
    try:
        np.savez(target, allow_pickle=False, **arrays)
    except OSError as error:
        if not storage.is_full(error):
            raise
        return errno.ENOSPC
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
