"""W. Kim, K. Park, K. Sohn, R. Shu, H.-S. Kim. Federated Semi-Supervised Learning with Prototypical Networks.
https://arxiv.org/abs/2205.13921

Its Tables 3, 4 and 7 to 9; accuracies in percent.
"""

from functools import partial

from jaxfed.paper_numbers.table import MEANS_ALONE, PaperTable, means

_PROTOFSSL = (
    "W. Kim, K. Park, K. Sohn, R. Shu, H.-S. Kim: Federated Semi-Supervised Learning with Prototypical "
    "Networks, https://arxiv.org/abs/2205.13921"
)

_table = partial(PaperTable, citation=_PROTOFSSL, statistics=MEANS_ALONE)
_SPLITS = ("iid", "non-iid")
_SETS = (*(f"{data}, {split}" for data in ("CIFAR-10", "SVHN") for split in _SPLITS), "STL-10")

TABLES = {
    "protofssl/3": _table(
        number=3,
        title="Labeled only and semi-supervised methods, 100 clients, 5 a round; -SL with all labels",
        data="CIFAR-10, SVHN and STL-10",
        setting="method",
        columns=_SETS,
        rows={
            "FedAvg-SL": means(81.7, 80.0, 93.4, 91.7, None),
            "FedProx-SL": means(83.0, 81.2, 95.3, 93.9, None),
            "FedAvg": means(62.2, 62.2, 83.5, 83.5, 72.3),
            "FedProx": means(62.7, 62.7, 83.9, 83.9, 72.0),
            "FixMatch-FedAvg": means(62.4, 61.8, 86.5, 87.0, 73.7),
            "FixMatch-FedProx": means(63.4, 61.6, 87.6, 87.5, 73.6),
            "FedMatch": means(57.7, 59.1, 82.9, 81.9, 66.1),
            "ProtoFSSL-FedAvg": means(67.8, 66.5, 88.3, 88.1, 76.4),
            "ProtoFSSL-FedProx": means(68.1, 67.6, 88.6, 88.8, 76.6),
            "FedRGD (quoted)": means(69.7, 63.4, None, None, None),
            "ProtoFSSL (with BN)-FedAvg": means(73.9, 73.4, 93.8, 93.2, 78.2),
            "ProtoFSSL (with BN)-FedProx": means(73.9, 72.5, 91.1, 90.8, 79.3),
        },
    ),
    "protofssl/4": _table(
        number=4,
        title="Networks and their norms; sBN is static BN",
        data="CIFAR-10",
        setting="method, network, norm",
        columns=_SPLITS,
        rows={
            "FedAvg-SL, ResNet-9, none": means(81.7, 80.0),
            "FedAvg-SL, ResNet-9, BN": means(87.8, 86.8),
            "FedAvg-SL, ResNet-9, GN": means(85.7, 82.0),
            "FedAvg-SL, ResNet-9, sBN": means(88.8, 87.3),
            "FedAvg-SL, ResNet-18, sBN": means(88.8, 87.5),
            "ProtoFSSL, ResNet-8, none": means(66.1, 65.6),
            "ProtoFSSL, ResNet-8, BN": means(73.9, 73.4),
            "ProtoFSSL, ResNet-8, GN": means(68.3, 69.2),
            "ProtoFSSL, ResNet-8, sBN": means(73.6, 68.9),
            "ProtoFSSL, ResNet-17, sBN": means(74.0, 72.0),
        },
    ),
    "protofssl/7": _table(
        number=7,
        title="ProtoFSSL, unlabeled examples of an episode",
        data="CIFAR-10",
        setting="n_QU",
        columns=_SPLITS,
        rows={
            "10": means(65.4, 65.4),
            "20": means(65.5, 65.7),
            "30": means(65.5, 65.9),
            "50": means(66.7, 66.7),
            "100": means(66.6, 66.6),
            "200": means(66.7, 66.5),
        },
    ),
    "protofssl/8": _table(
        number=8,
        title="ProtoFSSL, local epochs E and active clients M",
        data="CIFAR-10, iid",
        setting="M",
        columns=("E = 1", "E = 2", "E = 5", "E = 10"),
        rows={
            "5": means(30.2, 41.4, 63.9, 66.1),
            "20": means(38.8, 42.7, 64.7, 65.1),
        },
    ),
    "protofssl/9": _table(
        number=9,
        title="ProtoFSSL with BN, noise of deviation sigma on shared prototypes",
        data="CIFAR-10, SVHN and STL-10",
        setting="sigma",
        columns=_SETS,
        rows={
            "none": means(73.9, 73.4, 93.8, 93.2, 78.2),
            "0.01": means(73.4, 72.0, 90.8, 90.7, 78.4),
            "0.05": means(73.4, 72.4, 90.9, 90.6, 78.4),
            "0.1": means(73.8, 72.4, 91.1, 91.2, 78.4),
            "0.5": means(73.2, 71.4, 90.9, 91.2, 78.1),
            "5": means(74.1, 73.6, 91.3, 91.1, 77.6),
            "10": means(47.5, 45.9, 86.3, 86.2, 62.6),
        },
    ),
}
