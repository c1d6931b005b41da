"""Real data sets as arrays, and their partition into simulated clients.

`load` reads a set by name or path; `partition` assigns examples to clients, with or without their labels.
Both use NumPy only: nothing here runs on a device.
"""

from typing import TYPE_CHECKING

from jaxfed.registry import imported_on_use

if TYPE_CHECKING:
    from jaxfed.data.dataset import Dataset
    from jaxfed.data.loading import load
    from jaxfed.data.partitioning.partition import (
        FEDMATCH_TABLE,
        Partition,
        class_counts,
        partition,
    )

__all__ = ["FEDMATCH_TABLE", "Dataset", "Partition", "class_counts", "load", "partition"]
# Name -> file. Readers are many, so their files are imported when one is asked for.
_FILES = dict.fromkeys(__all__, "partitioning.partition") | {
    "Dataset": "dataset",
    "load": "loading",
}
__getattr__ = imported_on_use(__name__, _FILES)
