"""The data of ProtoFSSL's Table 3: sizes of A.1, labels, partitions and proximal weights of Table 5.

W. Kim, K. Park, K. Sohn, R. Shu, H.-S. Kim. "Federated Semi-Supervised Learning with Prototypical Networks"
(arXiv 2205.13921); the severe partition is of the authors' code alone.
"""

from typing import NamedTuple

from ml_collections import ConfigDict


class Cell(NamedTuple):
    """A column of Table 3: examples are clients', without those to validate and to test on.

    `mu` are the proximal weights of FedProx and of ProtoFSSL-FedProx.
    """

    dataset: str
    train_size: int
    held_out: int  # to validate on, and as many to test on
    labels: int  # of each class, a client
    mu: tuple[float, float]
    partition: str = "iid"  # "noniid", "severe"
    unlabeled_size: int = 0  # more examples, whose class nobody knows
    translation: int = 4  # of an image, an eighth of its side


CELLS = {
    "cifar10_iid": Cell("cifar10", 54_000, 3_000, 5, (1e-2, 1e-2)),
    "cifar10_noniid": Cell("cifar10", 54_000, 3_000, 5, (1e-2, 1e-2), "noniid"),
    "svhn_iid": Cell("svhn_cropped", 54_000, 2_000, 5, (1e-4, 1e-3)),
    "svhn_noniid": Cell("svhn_cropped", 54_000, 2_000, 5, (1e-4, 1e-3), "noniid"),
    "stl10": Cell("stl10", 10_000, 1_500, 10, (1e-2, 1e-2), "iid", 98_000, translation=12),
}
SEVERE = {
    "cifar10_severe": Cell("cifar10", 54_000, 3_000, 5, (1e-2, 1e-2), "severe"),
    "svhn_severe": Cell("svhn_cropped", 54_000, 2_000, 5, (1e-4, 1e-3), "severe"),
}
_SEVERE_ROW = (0.5, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.0, 0.0)
SEVERE_TABLE = tuple(tuple(_SEVERE_ROW[(c - row) % 10] for c in range(10)) for row in range(10))


def deal(config: ConfigDict, cell: Cell) -> None:
    """The cell's examples to a hundred clients."""
    held_in = cell.train_size + cell.held_out
    config.dataset.name = cell.dataset
    config.dataset.pooled = config.dataset.balanced = True
    config.dataset.train_size, config.dataset.test_size = held_in, cell.held_out
    config.dataset.validation_fraction = cell.held_out / held_in
    config.dataset.unlabeled_size = cell.unlabeled_size
    config.federation.num_clients = 100
    config.federation.labeled_per_class = cell.labels
    if cell.partition == "noniid":
        config.federation.partition = "table"
        config.federation.skew = "unlabeled"
    if cell.partition == "severe":
        config.federation.partition = "table"
        config.federation.table = SEVERE_TABLE
        config.federation.labeled_per_class = 0
        config.federation.num_labeled = 10 * cell.labels * config.federation.num_clients


def column(config: ConfigDict, cell: Cell) -> None:
    """Set a column of Table 3: its data, methods, network and rounds."""
    config.paper_table = "protofssl/3" if cell.partition != "severe" else ""
    config.baselines = (
        *("fedavg", "fedprox", "fixmatch", "fixmatch_fedprox", "fedmatch", "protofssl_fedprox"),
    )
    config.rounds = 300
    config.evaluate_every = 10
    config.num_repeats = 3
    deal(config, cell)
    if cell.partition == "severe":
        config.training.epochs = 15
        config.protofssl.num_helpers = 15
        config.protofssl.unlabeled_query = 200
        config.protofssl.unlabeled_after = 200
    config.model = ConfigDict({"name": "resnet9"})
    config.fedprox.mu, config.protofssl_fedprox.mu = cell.mu
    if cell.dataset == "stl10":
        config.model.pools = (3, 2, 4, 4)
    config.fixmatch.training = ConfigDict(
        {
            "epochs": 2,
            "unlabeled_ratio": 10,
            "augmentation": (f"translate:{cell.translation}", "flip"),
            "strong_augmentation": ("randaugment:2:14",),
        }
    )
    config.fedmatch = ConfigDict(
        {
            "psi_threshold": 5e-6,
            "delta_threshold": 5e-5,
            "training": {
                "optimizer": "sgd",
                "weight_decay": 0.0,
                "epochs": 1,
                "unlabeled_ratio": 10,
                "strong_augmentation": ("randaugment:6:4",),
            },
        }
    )
