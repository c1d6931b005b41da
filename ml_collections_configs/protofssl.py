r"""ProtoFSSL beside its baselines: clients share prototypes and pseudo-label with them.

Table 5's settings (RMSprop at 1e-3, ten episodes a round, n_S = 1, n_Q = 2, n_U = 100, five helpers, lambda =
0.3, T = 0.5) on the paper's cells, and on cells sized for two cores:

    python -m launch.run --config=ml_collections_configs/protofssl.py --workdir=runs/protofssl_digits
    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist and cifar10
    python -m launch.run --config=ml_collections_configs/protofssl.py:fashion_mnist \
        --workdir=runs/protofssl_fashion_mnist
    python -m launch.run --config=ml_collections_configs/protofssl.py:cifar10_iid \
        --workdir=runs/protofssl_cifar10

The baselines' network is the same with one dense layer more; every method has RMSprop at that rate.
FixMatch's weight and threshold are those of ProtoFSSL's code.
"""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from ml_collections_configs import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    cifar10_iid cifar10_noniid      Table 3: 100 clients, 5 labels of each class, ResNet-8/9
    fashion_mnist                   20 clients with 2 labels of each class, a small CNN, 40 rounds
    batch_norm group_norm           Table 4's norms in the ResNets
    global                          Algorithm 2 (B.1): helpers' mean prototypes in place of the client's own
    authors                         the distance of the authors' code
    smoke                           two rounds
    """
    config = base.get_config()
    config.algorithm = "protofssl"
    config.baselines = ("fedavg", "fixmatch")
    config.num_repeats = 5
    config.rounds = 40
    config.cohort_size = 5
    config.evaluate_every = 5
    config.dataset.name = "digits"
    config.dataset.validation_fraction = 0.1
    config.preprocessing.kind = "images"
    config.federation.num_clients = 10
    config.federation.labeled_per_class = 3
    config.federation.test = "central"
    config.model.name = "mlp"
    config.model.hidden = (128,)
    config.training.optimizer = "rmsprop"
    config.training.learning_rate = 1e-3
    config.training.weight_decay = 1e-4
    config.training.epochs = 10
    config.training.batch_size = 10
    config.training.unlabeled_ratio = 4
    config.training.strong_augmentation = ("translate:1", "cutout:3")
    config.protofssl = ConfigDict(
        {
            "support": 1,
            "query": 2,
            "unlabeled_query": 100,
            "unlabeled_weight": 0.3,
            "temperature": 0.5,
            "num_helpers": 5,
            "helper_interval": 1,
            "mu": 0.0,
            "distance": "euclidean",
            "prototypes": "local",
            "min_labels": 1,
            "noise": 0.0,
            "clip": 0.0,
        }
    )
    config.fixmatch = ConfigDict({"threshold": 0.95, "unlabeled_weight": 0.01})
    return base.apply_variants(config, variant, VARIANTS, exclusive=[DATA])


def _fashion_mnist(config: ConfigDict) -> None:
    config.dataset.name = "fashion_mnist"
    config.dataset.train_size, config.dataset.test_size = 5000, 2000
    config.federation.num_clients = 20
    config.federation.labeled_per_class = 2
    config.protofssl.query = 1  # beside one support, all that there is
    config.model = ConfigDict({"name": "cnn"})
    config.training.strong_augmentation = ("translate:2", "cutout:8")


def _cifar10(config: ConfigDict, *, is_iid: bool) -> None:
    config.dataset.name = "cifar10"
    config.federation.num_clients = 100
    config.federation.labeled_per_class = 5
    if not is_iid:
        config.federation.partition = "table"
        config.federation.skew = "unlabeled"
    config.rounds = 300
    config.evaluate_every = 10
    config.num_repeats = 3
    config.model = ConfigDict({"name": "resnet9"})
    config.training.strong_augmentation = ("randaugment:2:14",)


def _norm(config: ConfigDict, kind: str) -> None:
    config.model = ConfigDict({"name": "resnet9", "norm": kind})


def _global(config: ConfigDict) -> None:
    config.protofssl.prototypes = "global"


def _authors(config: ConfigDict) -> None:
    config.protofssl.distance = "mean_squared"


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats = 1
    if config.dataset.name != "digits":
        config.dataset.train_size, config.dataset.test_size = 1000, 200
        config.federation.num_clients = 5


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "fashion_mnist": _fashion_mnist,
    "cifar10_iid": partial(_cifar10, is_iid=True),
    "cifar10_noniid": partial(_cifar10, is_iid=False),
    "batch_norm": partial(_norm, kind="batch"),
    "group_norm": partial(_norm, kind="group"),
    "global": _global,
    "authors": _authors,
    "smoke": _smoke,
}
DATA = ("fashion_mnist", "cifar10_iid", "cifar10_noniid")
