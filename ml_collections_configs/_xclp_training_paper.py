"""The data of XCLP's Tables 4 and 5: a cell for each column, and how many examples its clients share.

J. Scott, M. Yeo, C. H. Lampert. "Cross-client Label Propagation for Transductive and Semi-Supervised
Federated Learning". TMLR 2023, Section 4.2 and Appendix A.2, which has the rates.
"""

import math
from typing import NamedTuple

from ml_collections import ConfigDict


class Cell(NamedTuple):
    """A column of Table 4 or 5."""

    dataset: str
    num_clients: int
    num_labeled_clients: int  # m_L
    num_labeled: int  # n_L
    learning_rate: float
    is_iid: bool = True


def _cifar10(is_iid: bool, num_labeled_clients: int, num_labeled: int) -> Cell:
    """A.2: the rate is 0.3 for clients with 50 labels or more, else 0.1."""
    rate = 0.3 if num_labeled >= 50 * num_labeled_clients else 0.1
    return Cell("cifar10", 100, num_labeled_clients, num_labeled, rate, is_iid)


CELLS = {
    **{
        f"cifar10_{split}_{m_l}_{n_l}": _cifar10(split == "iid", m_l, n_l)
        for split in ("iid", "noniid")
        for m_l in (100, 50)
        for n_l in (1000, 5000)
    },
    "cifar100_iid_50_5000": Cell("cifar100", 50, 50, 5000, 0.5),
    "cifar100_iid_100_10000": Cell("cifar100", 100, 100, 10000, 0.5),
    "mini_imagenet_iid_50_5000": Cell("mini_imagenet", 50, 50, 5000, 1.0),
    "mini_imagenet_iid_100_10000": Cell("mini_imagenet", 100, 100, 10000, 1.0),
}

# Of the training split, without what validates.
NUM_EXAMPLES = {"digits": 1294, "cifar10": 45000, "cifar100": 45000, "mini_imagenet": 45000}


def column(config: ConfigDict, cell: Cell) -> None:
    """Set a column of Table 4 or 5: its data, methods that start from stage 1, network and rounds."""
    config.baselines = ("fedavg_per_client_lp", "fedavg_network", "fedsem")
    config.paper_table = "xclp/4" if cell.dataset == "cifar10" else "xclp/5"
    config.rounds = 1500
    config.dataset.name = cell.dataset
    config.federation.num_clients = cell.num_clients
    config.federation.num_labeled_clients = cell.num_labeled_clients
    config.federation.num_labeled = cell.num_labeled
    if not cell.is_iid:
        config.federation.partition = "classes_per_client"
        config.federation.classes_per_client = 5
        config.federation.skew = "labeled"
    config.model = ConfigDict({"name": "cnn13"})
    config.training.learning_rate = cell.learning_rate
    config.training.schedule_rounds = 2000
    config.training.labeled_only_rounds = 0
    config.training.augmentation = ("translate:4", "flip")
    if cell.dataset == "mini_imagenet":
        config.baselines = ("fedavg_per_client_lp", "fedavg_network")
        config.dataset.image_size = 84
        config.dataset.test_fraction = 1 / 6  # of 60,000
        config.model = ConfigDict({"name": "resnet18", "stem": "imagenet"})
        config.training.augmentation = ("rotate:10", "flip")
    if cell.dataset == "cifar100":
        config.baselines = ("fedavg_per_client_lp", "fedavg_network")


def unlabeled_per_label(config: ConfigDict) -> int:
    """Unlabeled examples per label at a labeled client, rounded up: a pass over its labels covers all."""
    wanted, num_examples = config.federation, NUM_EXAMPLES[config.dataset.name]
    num_labels = wanted.num_labeled // (wanted.num_labeled_clients or wanted.num_clients)
    return max(1, math.ceil(num_examples // wanted.num_clients / num_labels - 1))
