"""One's own data by config alone: a table whose rows name their client, most of them without a label.

machines.csv has a column `plant` (who holds the row), numbers, a text, and `state`, empty where nobody has
looked. XCLP labels the unlabeled rows of all plants together, without any plant showing its rows:

    python -m launch.run --config=examples/own_data.py --workdir=runs/machines
    python -c "import pandas; print(pandas.read_csv('runs/machines/predictions/xclp-0.csv.gz'))"

`index` is the row of the table, from 0; `label` and `truth` number the states in the order of their names: 0
idle, 1 normal, 2 worn (`class_names` in runs/machines/partition.json).
"""

from pathlib import Path

from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    config = base.get_config()
    config.dataset.name = str(Path(__file__).with_name("machines.csv"))
    config.dataset.label_key = "state"
    config.dataset.client_key = "plant"
    config.federation.partition = "natural"
    config.federation.num_clients = 0  # as many as there are
    config.federation.labeled_fraction = 1.0  # of the labels that there are
    config.preprocessing.kind = "standardized"  # speeds are in thousands, vibrations near 1
    return base.apply_variants(config, variant)
