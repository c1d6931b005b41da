"""The method is in `method.py`; the other files of this room are for it alone."""

from jaxfed.algorithms.dp_fedavg_records.method import dp_fedavg_records as dp_fedavg_records
