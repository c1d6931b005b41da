"""One process of a parallel decode: `python -m jaxfed.data.decode_worker JOB`, started by `tfds_source`.

A program of its own, because `multiprocessing` would import the user's main module again in every
process: a script without a main guard, a notebook or a prompt could then not load a large set.
"""

import json
import sys
from pathlib import Path

import numpy as np

from jaxfed.data.tfds_source import decode_range


def main(job: str) -> None:
    """Decode the range that the job (a JSON list) names; write its arrays to the `.npz` named last."""
    folder, split, keys, start, stop, target = json.loads(job)
    arrays = decode_range(Path(folder), split, keys, start, stop)
    np.savez(target, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
