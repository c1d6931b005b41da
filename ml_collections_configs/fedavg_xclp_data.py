"""The data of XCLP's Tables 4 and 5: a cell for each column, and how many examples its clients share.

J. Scott, M. Yeo, C. H. Lampert. "Cross-client Label Propagation for Transductive and Semi-Supervised
Federated Learning". TMLR 2023, Section 4.2 and Appendix A.2, which has the rates.
"""

from typing import NamedTuple


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
