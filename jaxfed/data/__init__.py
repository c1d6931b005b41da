"""Real data sets as arrays, and their partition into simulated clients.

`load` reads a set by name or path; `partition` assigns examples to clients, with or without their labels.
Both use NumPy only: nothing here runs on a device.
"""

from jaxfed.data.dataset import Dataset
from jaxfed.data.loading import load
from jaxfed.data.partitioning import FEDMATCH_TABLE, Partition, class_counts, partition

__all__ = ["FEDMATCH_TABLE", "Dataset", "Partition", "class_counts", "load", "partition"]
