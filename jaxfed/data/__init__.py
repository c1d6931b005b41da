"""Real data sets as arrays, and their partition into simulated clients.

`load` reads a set by name or path; `partition` assigns examples to clients, with or without their labels.
Both use NumPy only: nothing here runs on a device.
"""

from typing import TYPE_CHECKING

from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import Dataset
from jaxfed.registry import imported_on_use

if TYPE_CHECKING:
    from jaxfed.data.loading import load
    from jaxfed.data.packing import pack
    from jaxfed.data.partitioning import Labels, class_counts, partition
    from jaxfed.data.schemes import (
        FEDMATCH_TABLE,
        SCHEMES,
        Classes,
        Dirichlet,
        DirichletMixture,
        DirichletPairs,
        Iid,
        Natural,
        OwnerScheme,
        Scheme,
        Subclasses,
        Table,
    )

__all__ = [
    "FEDMATCH_TABLE",
    "SCHEMES",
    "Classes",
    "ClientRows",
    "Dataset",
    "Dirichlet",
    "DirichletMixture",
    "DirichletPairs",
    "Iid",
    "Labels",
    "Natural",
    "OwnerScheme",
    "Partition",
    "Scheme",
    "Subclasses",
    "Table",
    "class_counts",
    "load",
    "pack",
    "partition",
]
# Name -> file, imported when it is asked for.
_FILES = {
    **dict.fromkeys(__all__, "schemes"),
    **dict.fromkeys(["Labels", "class_counts", "partition"], "partitioning"),
    **{"load": "loading", "pack": "packing"},
}
__getattr__ = imported_on_use(__name__, _FILES)
