"""Data of FedCT's experiments: Table 7 for images, E.3 for tables, if their sizes add up.

A. Abourayya et al. "Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated
Semi-Supervised Learning". AAAI 2025 (arXiv 2310.05696). Some files have fewer examples than printed. For
Pneumonia 4,332 examples remain for clients, not 4,386. For MRI, without its duplicates
(`jaxfed.data.readers.named`), 145 are public, not 170. Classes of CIFAR-100 are superclasses (C.4);
sizes, network, b and T, which C.4 does not give, are CIFAR-10's.

`members` is the number of a client's labels that `launch.audit` attacks, 0 for all. It is limited by the
held-out examples of the same classes, after `population` of them are set aside.
"""

from typing import NamedTuple

from ml_collections import ConfigDict


class Table(NamedTuple):
    """Tabular data; `public_size` of the `train_size` examples are public."""

    train_size: int
    test_size: int
    public_size: int
    preprocessing: str = "standardized"
    pooled: bool = False
    members: int = 0
    population: int = 200

    @property
    def own_size(self) -> int:
        """Number of examples of all clients together."""
        return self.train_size - self.public_size


CELLS = {
    "wine_quality": Table(4236, 1059, 4100),
    "breast_cancer": Table(455, 114, 370, population=15),
    "adult": Table(41_073, 7_769, 10_000, "identity", pooled=True, members=1200),
    "mushroom": Table(6_499, 1_625, 4_000, members=220),
    "covertype": Table(16_000, 4_000, 1_721, "identity", members=600),
}


class Images(NamedTuple):
    """Images, a network, its optimizer (E.3), b and T of Table 7; sizes of 0 are the set's own splits.

    `own_size` is the fixed number of examples of all clients together while U is swept.
    """

    public_size: int
    own_size: int
    network: str
    learning_rate: float
    period: int
    num_steps: int
    train_size: int = 0
    test_size: int = 0
    image_size: int = 0
    dataset: str = ""
    members: int = 0
    population: int = 200


IMAGES = {
    "fashion_mnist": Images(50_000, 10_000, "fedct_fashion_mnist", 1e-3, 50, 20_000, members=1500),
    "cifar10": Images(10_000, 40_000, "fedct_cifar10", 1e-2, 10, 3_000, members=1500),
    "svhn": Images(
        35_000, 38_257, "fedct_svhn", 1e-3, 10, 20_000, dataset="svhn_cropped", members=3000
    ),
    "pneumonia": Images(
        900, 500, "fedct_pneumonia", 1e-3, 20, 20_000, image_size=224, members=70, population=50
    ),
    "pneumonia_mnist": Images(
        900, 500, "fedct_pneumonia", 1e-3, 20, 20_000, members=70, population=50
    ),
    "brain_mri": Images(145, 30, "fedct_mri", 1e-3, 6, 2_000, 175, 53, 150, population=10),
    "cifar100_superclasses": Images(
        *(10_000, 40_000, "fedct_cifar10", 1e-2, 10, 3_000), dataset="cifar100", members=1500
    ),
}


def table(config: ConfigDict, name: str) -> None:
    """Set the data of this table."""
    cell = CELLS[name]
    config.dataset.name = name
    config.dataset.train_size, config.dataset.test_size = cell.train_size, cell.test_size
    config.audit.members, config.audit.population = cell.members, cell.population
    config.dataset.pooled, config.preprocessing.kind = cell.pooled, cell.preprocessing
    config.federation.public_size = cell.public_size


def images(config: ConfigDict, name: str) -> None:
    """Set these images, their network and optimizer."""
    cell = IMAGES[name]
    config.dataset.name = cell.dataset or name
    config.dataset.train_size, config.dataset.test_size = cell.train_size, cell.test_size
    config.audit.members, config.audit.population = cell.members, cell.population
    config.dataset.image_size = cell.image_size
    config.dataset.pooled, config.preprocessing.kind = False, "images"
    config.federation.public_size = cell.public_size
    config.model = ConfigDict({"name": cell.network})
    config.training.learning_rate, config.fedct.steps = cell.learning_rate, cell.period
    config.rounds = cell.num_steps // cell.period
    config.evaluate_every = config.rounds // 20
    config.evaluate_test = True  # for Figures 2, 3 and 7
    config.learner.name = "network"
    if name == "cifar100_superclasses":
        config.dataset.label_key = "coarse_label"
        config.federation.partition = "subclasses"
        config.federation.public_labeled = True  # of FedMD alone
