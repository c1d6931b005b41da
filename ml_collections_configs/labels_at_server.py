r"""Labels at the server only: the lower bound and semi-supervised methods in one table.

    python -m launch.run --config=ml_collections_configs/labels_at_server.py --workdir=runs/server_digits
    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist and cifar10
    python -m launch.run --config=ml_collections_configs/labels_at_server.py:fashion_mnist \
        --workdir=runs/server_fashion_mnist
    python -m launch.run --config=ml_collections_configs/labels_at_server.py:cifar10 \
        --workdir=runs/server_cifar10

Every round begins with five epochs of the server on its labels; FedRGD's server trains beside its clients.
The rows:

    fedavg            the server alone, the lower bound: no client takes part
    fedavg_network    clients train on the labels of the model that they receive, weighted by confidence
    fixmatch          on FixMatch's unlabeled term
    fedmatch          on FedMatch's; only psi comes back. Weights are scaled to the rate here, 100
                      times its paper's; thresholds and lambda_L1 are its code's for labels at the server
    fedrgd            group averaging in two groups
    semifl            labels once a round, mixup, server momentum 0.5
    fedavg_xclp       on labels by XCLP, where the server is an additional party

CIFAR-10 has SemiFL's setting: 100 clients, 10 a round, 4000 labels (its other number is 250:
`--config.federation.num_labeled=250`), SGD at 0.03 with Nesterov's momentum 0.9 and weight decay 5e-4,
batches of 10, a cosine over the rounds. Its network is a Wide ResNet 28x2 with static BatchNorm; here all
have ResNet-9 with FedRGD's group normalization.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants: fashion_mnist (100 clients, 100 labels, a small CNN), cifar10, and the shared ones."""
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.algorithm = "semifl"
    config.baselines = (
        *("fedavg", "fedavg_network", "fixmatch", "fedmatch"),
        *("fedrgd", "fedavg_xclp"),
    )
    config.num_repeats = 3
    config.rounds = 30
    config.cohort_size = 5
    config.evaluate_every = 5
    config.dataset.name = "digits"
    config.dataset.validation_fraction = 0.1
    config.preprocessing.kind = "images"
    config.federation.labels_at = "server"
    config.federation.num_clients = 20
    config.federation.num_labeled = 50
    config.federation.test = "central"
    config.model.name = "mlp"
    config.model.hidden = (128,)
    config.training.weighting = "uniform"  # for all methods alike
    config.training.learning_rate = 0.1
    config.training.batches = "joint"
    config.training.batch_size = 10
    config.training.server_epochs = 5
    config.training.server_batch_size = 10
    config.training.strong_augmentation = ("translate:1", "cutout:3")
    config.xclp.tolerance = 1e-4

    config.semifl = ConfigDict(
        {
            "threshold": 0.95,
            "mix_weight": 1.0,
            "mix_alpha": 0.75,
            "max_norm": 1.0,
            "training": {"server_momentum": 0.5},
        }
    )
    config.fedrgd = ConfigDict({"num_groups": 2, "threshold": 0.95})
    config.fixmatch = ConfigDict({"threshold": 0.95, "unlabeled_weight": 1.0})
    config.fedmatch = ConfigDict(
        {
            "supervised_weight": 1.0,
            "consistency_weight": 0.01,
            "l2_weight": 0.1,
            "l1_weight": 1e-5,
            "psi_threshold": 1e-5,
            "delta_threshold": 1e-5,
        }
    )
    return base.apply_variants(config, variant, VARIANTS, exclusive=[("fashion_mnist", "cifar10")])


def _fashion_mnist(config: ConfigDict) -> None:
    config.dataset.name = "fashion_mnist"
    config.dataset.train_size, config.dataset.test_size = 10000, 2000
    config.federation.num_clients = 100
    config.federation.num_labeled = 100
    config.cohort_size = 10
    config.rounds = 60
    config.evaluate_every = 10
    config.model = ConfigDict({"name": "cnn"})
    config.training.epochs = 1
    config.training.strong_augmentation = ("translate:2", "cutout:8")


def _cifar10(config: ConfigDict) -> None:
    config.dataset.name = "cifar10"
    config.federation.num_clients = 100
    config.federation.num_labeled = 4000
    config.cohort_size = 10
    config.rounds = 800
    config.evaluate_every = 20
    config.model = ConfigDict({"name": "resnet9", "norm": "group"})
    config.training.learning_rate = 0.03
    config.training.momentum = 0.9
    config.training.nesterov = True
    config.training.weight_decay = 5e-4
    config.training.schedule = "cosine"
    config.training.augmentation = ("translate:4", "flip")
    config.training.strong_augmentation = ("translate:4", "flip", "randaugment:2:10")


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats = 1
    if config.dataset.name != "digits":
        config.dataset.train_size, config.dataset.test_size = 1000, 200
        config.federation.num_clients, config.cohort_size = 10, 2
        config.federation.num_labeled = 100


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "fashion_mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "smoke": _smoke,
}


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over the server's number of labels."""
    for number in (250, 4000) if "cifar10" in variant.split(",") else (20, 50, 100, 200):
        add(**{"federation.num_labeled": number})
