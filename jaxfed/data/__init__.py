"""Real data sets as arrays, and their partition into simulated clients.

`load` reads a set by name or path; `partition` assigns examples to clients, with or without their labels.
Both use NumPy only: nothing here runs on a device.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

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


def __getattr__(name: str) -> object:
    if name in _FILES:
        return getattr(_import_module(f"{__name__}.{_FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
