"""Results that the papers print, for orientation beside one's own: theirs are on other data.

Accuracies are in percent, copied from the tables of

    J. Scott, M. Yeo, C. H. Lampert. Cross-client Label Propagation for Transductive and
    Semi-Supervised Federated Learning. https://openreview.net/forum?id=gYO4GX8R5k (`XCLP`),
    W. Kim, K. Park, K. Sohn, R. Shu, H.-S. Kim. Federated Semi-Supervised Learning with Prototypical
    Networks. https://arxiv.org/abs/2205.13921 (`PROTOFSSL`).

A config names the table it is modeled on by the key `paper_table`, such as "xclp/1".
"""

from functools import partial
from typing import NamedTuple

from jaxfed.errors import UsageError

_XCLP = (
    "J. Scott, M. Yeo, C. H. Lampert: Cross-client Label Propagation for Transductive and "
    "Semi-Supervised Federated Learning, https://openreview.net/forum?id=gYO4GX8R5k"
)

_PROTOFSSL = (
    "W. Kim, K. Park, K. Sohn, R. Shu, H.-S. Kim: Federated Semi-Supervised Learning with Prototypical "
    "Networks, https://arxiv.org/abs/2205.13921"
)

_THREE_RUNS = "mean and standard deviation over three runs"
_MEANS_ALONE = "without deviations"

PaperCell = tuple[float, float | None] | None


class PaperTable(NamedTuple):
    """A table of a paper: `rows` maps a setting to (mean, deviation) in percent, one a column.

    A deviation that is not printed is None, as is a cell that is empty. `metric` is what the table measures,
    by the name that it has in metrics.jsonl, `statistics` what is printed of it.
    """

    number: int
    title: str
    data: str
    citation: str
    setting: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[PaperCell, ...]]
    metric: str = "test_accuracy"
    statistics: str = _THREE_RUNS


def _means(*values: float | None) -> tuple[PaperCell, ...]:
    """Cells of printed means."""
    return tuple(None if value is None else (value, None) for value in values)


_protofssl_table = partial(PaperTable, citation=_PROTOFSSL, statistics=_MEANS_ALONE)
_SPLITS = ("iid", "non-iid")
_SETS = (*(f"{data}, {split}" for data in ("CIFAR-10", "SVHN") for split in _SPLITS), "STL-10")


def _two_features(given: str, trained: str) -> tuple[str, ...]:
    """Columns of Tables 1 and 6: features that are there, and those of a network that FedAvg trains."""
    blocks = ((given, ("per-client LP", "XCLP")), (trained, ("FedAvg", "per-client LP", "XCLP")))
    return tuple(f"{features}: {method}" for features, methods in blocks for method in methods)


PAPER_TABLES = {
    "xclp/1": PaperTable(
        number=1,
        title="XCLP for prediction, two preprocessing functions, training sets of different size",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="training set size",
        columns=_two_features("pretrained", "finetuned"),
        rows={
            "954": ((30.70, 1.25), (34.00, 1.12), (43.78, 0.88), (45.35, 1.25), (47.48, 1.12)),
            "1882": ((31.40, 1.18), (34.61, 0.93), (46.83, 0.75), (48.10, 1.18), (52.34, 0.93)),
            "3744": ((37.41, 0.20), (38.49, 0.88), (52.87, 0.14), (56.98, 0.20), (59.49, 0.88)),
            "18597": ((55.10, 0.51), (53.38, 0.67), (63.78, 0.20), (73.30, 0.51), (74.22, 0.67)),
        },
        metric="test_balanced_accuracy",
    ),
    "xclp/2": PaperTable(
        number=2,
        title="XCLP for prediction, leave one client out",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="left-out client",
        columns=("FedAvg", "XCLP"),
        rows={
            "1": ((35.15, 0.96), (38.89, 1.34)),
            "2": ((68.75, 0.72), (67.05, 0.54)),
            "3": ((51.94, 2.52), (62.02, 1.13)),
            "4": ((42.72, 0.79), (54.84, 0.78)),
            "5": ((41.53, 1.60), (52.28, 0.58)),
            "6": ((46.92, 3.69), (61.27, 3.19)),
        },
        metric="test_balanced_accuracy",
    ),
    "xclp/3": PaperTable(
        number=3,
        title="XCLP for prediction, graph on labeled against labeled and unlabeled training data",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="labeled fraction",
        columns=("FedAvg", "XCLP (labeled)", "XCLP (labeled+unlabeled)"),
        rows={
            "0.05": ((43.78, 0.88), (47.48, 1.12), (49.50, 1.42)),
            "0.1": ((46.83, 0.75), (52.34, 0.93), (53.78, 0.90)),
            "0.2": ((52.87, 0.14), (59.49, 0.88), (61.09, 0.66)),
            "1.0": ((63.78, 0.20), (74.22, 0.67), (74.22, 0.67)),
        },
        metric="test_balanced_accuracy",
    ),
    "xclp/4": PaperTable(
        number=4,
        title="XCLP for federated SSL, iid and non-iid, m_L clients with n_L labels, m = 100",
        data="CIFAR-10",
        citation=_XCLP,
        setting="method",
        columns=tuple(
            f"{split}: m_L = {num_labeled}, n_L = {num_labels}"
            for split in ("iid", "non-iid")
            for num_labeled in (100, 50)
            for num_labels in (1000, 5000)
        ),
        rows={
            "FedAvg (labeled only)": (
                *((55.46, 0.43), (76.13, 0.46), (56.97, 0.59), (80.36, 0.07)),
                *((50.94, 0.14), (75.34, 1.38), (53.26, 0.69), (79.65, 0.12)),
            ),
            "FedAvg+perclientLP": (
                *((61.75, 2.22), (85.11, 0.73), (65.29, 2.50), (84.41, 0.25)),
                *((50.94, 0.14), (76.61, 1.50), (53.26, 0.69), (79.65, 0.12)),
            ),
            "FedAvg+network": (
                *((60.12, 0.15), (79.45, 0.31), (59.14, 0.35), (81.04, 0.20)),
                *((60.60, 0.60), (80.07, 0.53), (59.82, 1.05), (81.14, 0.23)),
            ),
            "FedMatch": (
                *((50.93, 0.56), (72.22, 0.14), (57.10, 0.46), (77.80, 0.32)),
                *((50.71, 1.57), (71.99, 0.70), (48.24, 0.86), (66.37, 0.41)),
            ),
            "FedSiam": (
                *((67.02, 0.98), (82.06, 0.56), (62.98, 1.61), (78.45, 0.34)),
                *((67.85, 0.26), (82.23, 0.46), (62.29, 1.84), (78.84, 0.72)),
            ),
            "FedSem+": (
                *((59.98, 0.49), (79.49, 0.15), (59.67, 0.47), (80.94, 0.25)),
                *((60.93, 0.97), (79.70, 0.78), (59.74, 0.74), (81.30, 0.09)),
            ),
            "FedAvg+XCLP": (
                *((70.91, 0.71), (86.65, 0.16), (70.81, 1.65), (86.29, 0.34)),
                *((73.76, 0.71), (85.53, 0.56), (70.01, 1.29), (85.42, 0.43)),
            ),
        },
    ),
    "xclp/5": PaperTable(
        number=5,
        title="XCLP for federated SSL, m clients with n_L labels",
        data="CIFAR-100 and Mini-ImageNet",
        citation=_XCLP,
        setting="method",
        columns=tuple(
            f"{data}: m = {num_clients}, n_L = {100 * num_clients}"
            for data in ("CIFAR-100", "Mini-ImageNet")
            for num_clients in (50, 100)
        ),
        rows={
            "FedAvg (labeled only)": ((43.80, 0.19), (53.91, 0.25), (23.39, 0.52), (31.72, 0.54)),
            "FedAvg+network": ((43.80, 0.19), (54.19, 0.21), (23.98, 0.36), (31.86, 0.57)),
            "FedAvg+perclientLP": ((43.82, 0.59), (54.38, 0.36), (25.53, 0.22), (33.09, 0.62)),
            "FedAvg+XCLP": ((50.19, 0.60), (57.00, 0.08), (26.93, 0.41), (35.78, 0.56)),
        },
    ),
    "xclp/6": PaperTable(
        number=6,
        title="XCLP for prediction, identity and linear embedding, fractions of labeled data",
        data="FEMNIST",
        citation=_XCLP,
        setting="labeled fraction",
        columns=_two_features("identity", "linear"),
        rows={
            "0.1": ((33.74, 0.20), (49.29, 0.16), (53.09, 0.19), (37.27, 0.12), (52.39, 0.30)),
            "0.2": ((44.79, 0.03), (53.93, 0.04), (57.54, 0.46), (50.89, 0.11), (58.57, 0.13)),
            "0.5": ((50.99, 0.06), (59.37, 0.13), (61.07, 0.49), (59.20, 0.19), (63.46, 0.11)),
            "1.0": ((51.91, 0.07), (62.35, 0.07), (62.90, 0.31), (59.42, 0.11), (66.18, 0.20)),
        },
    ),
    "protofssl/3": _protofssl_table(
        number=3,
        title="Labeled only and semi-supervised methods, 100 clients, 5 a round; -SL with all labels",
        data="CIFAR-10, SVHN and STL-10",
        setting="method",
        columns=_SETS,
        rows={
            "FedAvg-SL": _means(81.7, 80.0, 93.4, 91.7, None),
            "FedProx-SL": _means(83.0, 81.2, 95.3, 93.9, None),
            "FedAvg": _means(62.2, 62.2, 83.5, 83.5, 72.3),
            "FedProx": _means(62.7, 62.7, 83.9, 83.9, 72.0),
            "FixMatch-FedAvg": _means(62.4, 61.8, 86.5, 87.0, 73.7),
            "FixMatch-FedProx": _means(63.4, 61.6, 87.6, 87.5, 73.6),
            "FedMatch": _means(57.7, 59.1, 82.9, 81.9, 66.1),
            "ProtoFSSL-FedAvg": _means(67.8, 66.5, 88.3, 88.1, 76.4),
            "ProtoFSSL-FedProx": _means(68.1, 67.6, 88.6, 88.8, 76.6),
            "FedRGD (quoted)": _means(69.7, 63.4, None, None, None),
            "ProtoFSSL (with BN)-FedAvg": _means(73.9, 73.4, 93.8, 93.2, 78.2),
            "ProtoFSSL (with BN)-FedProx": _means(73.9, 72.5, 91.1, 90.8, 79.3),
        },
    ),
    "protofssl/4": _protofssl_table(
        number=4,
        title="Networks and their norms; sBN is static BN",
        data="CIFAR-10",
        setting="method, network, norm",
        columns=_SPLITS,
        rows={
            "FedAvg-SL, ResNet-9, none": _means(81.7, 80.0),
            "FedAvg-SL, ResNet-9, BN": _means(87.8, 86.8),
            "FedAvg-SL, ResNet-9, GN": _means(85.7, 82.0),
            "FedAvg-SL, ResNet-9, sBN": _means(88.8, 87.3),
            "FedAvg-SL, ResNet-18, sBN": _means(88.8, 87.5),
            "ProtoFSSL, ResNet-8, none": _means(66.1, 65.6),
            "ProtoFSSL, ResNet-8, BN": _means(73.9, 73.4),
            "ProtoFSSL, ResNet-8, GN": _means(68.3, 69.2),
            "ProtoFSSL, ResNet-8, sBN": _means(73.6, 68.9),
            "ProtoFSSL, ResNet-17, sBN": _means(74.0, 72.0),
        },
    ),
    "protofssl/7": _protofssl_table(
        number=7,
        title="ProtoFSSL, unlabeled examples of an episode",
        data="CIFAR-10",
        setting="n_QU",
        columns=_SPLITS,
        rows={
            "10": _means(65.4, 65.4),
            "20": _means(65.5, 65.7),
            "30": _means(65.5, 65.9),
            "50": _means(66.7, 66.7),
            "100": _means(66.6, 66.6),
            "200": _means(66.7, 66.5),
        },
    ),
    "protofssl/8": _protofssl_table(
        number=8,
        title="ProtoFSSL, local epochs E and active clients M",
        data="CIFAR-10, iid",
        setting="M",
        columns=("E = 1", "E = 2", "E = 5", "E = 10"),
        rows={
            "5": _means(30.2, 41.4, 63.9, 66.1),
            "20": _means(38.8, 42.7, 64.7, 65.1),
        },
    ),
    "protofssl/9": _protofssl_table(
        number=9,
        title="ProtoFSSL with BN, noise of deviation sigma on shared prototypes",
        data="CIFAR-10, SVHN and STL-10",
        setting="sigma",
        columns=_SETS,
        rows={
            "none": _means(73.9, 73.4, 93.8, 93.2, 78.2),
            "0.01": _means(73.4, 72.0, 90.8, 90.7, 78.4),
            "0.05": _means(73.4, 72.4, 90.9, 90.6, 78.4),
            "0.1": _means(73.8, 72.4, 91.1, 91.2, 78.4),
            "0.5": _means(73.2, 71.4, 90.9, 91.2, 78.1),
            "5": _means(74.1, 73.6, 91.3, 91.1, 77.6),
            "10": _means(47.5, 45.9, 86.3, 86.2, 62.6),
        },
    ),
}


def paper_table(name: str) -> PaperTable:
    """The paper's table that a config names by `paper_table`."""
    if name not in PAPER_TABLES:
        known = ", ".join(PAPER_TABLES)
        raise UsageError(f"paper_table: {name!r} is no table known here; known are {known}")
    return PAPER_TABLES[name]
