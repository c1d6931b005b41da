r"""Federated semi-supervised learning: labels by networks (to 2026), compared with XCLP's.

    python -m launch.run --config=ml_collections_configs/fssl.py --workdir=runs/fssl_digits
    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist, cifar10 and cifar100
    python -m launch.run --config=ml_collections_configs/fssl.py:fashion_mnist --workdir=runs/fssl
    python -m launch.run --config=ml_collections_configs/fssl.py:cifar10,dirichlet_01,paper \
        --workdir=runs/fssl_cifar10
    python -m launch.sweep --config=ml_collections_configs/fssl.py:fashion_mnist --workdir=runs/fssl_deals

The protocol is the one that SAGE and ProxyFL share: 20 clients, 8 a round, 10 % of the examples labeled, and
each client's labeled and unlabeled examples are independent Dirichlet draws
(`federation.skew="independent"`; `paper` has the splitter of SAGE's code). The rows:

    fedavg            on the given labels alone, the lower bound
    fixmatch          FixMatch, labels by the model in training (LPL in those papers)
    fixmatch_gpl      FixMatch, labels by the received model (GPL)
    flexmatch         thresholds by class, of FlexMatch
    freematch         thresholds by class, of FreeMatch
    fedlabel          labels of the surer of the two models
    feddb             labels and a mean corrected for classes that are predicted too often
    sage              labels of both, weighted by the difference of their confidences
    feddure           two regulators at the client weigh and judge its labels
    twinsight         a second network without labels has the same neighborhoods
    proxyfl           classifier rows as proxies of classes, tuned at the server
    fedloke           a model that stays at a client and one that travels teach each other
    rscfed            a mean teacher at each client; a mean of random groups' means
    cbafed            labels fixed for a round, thresholds by class frequency
    sage_xclp         SAGE, with XCLP's labels where neither model is sure
    fedavg_xclp       XCLP's labels, weighted by their confidence

The variant `server` leaves out FedLoKe, CBAFed, FedDure and Twin-sight, which need labels at clients, and
`fedavg_xclp`, which `labels_at_server.py` has; it adds SemiFL, (FL)^2 and FedCon. All rows have SAGE's
learning rate but Twin-sight, which diverges at that rate on images.

Without `paper` a run is small: a tenth of the data or less, a small network, and views that a CPU makes
quickly. `paper` is the size of those papers, and needs a GPU: batches of 128 labeled and 256 unlabeled
examples, SGD at 0.1 with momentum 0.9 and weight decay 1e-4, RandAugment(2, 10), the deal of SAGE's code
(`dirichlet_pairs`) and its ResNet-8. All clients take the steps of SAGE's code: n // 128 in each of 5 epochs,
with n the training examples of the data over 20 clients, labeled ones included. That is 95 for CIFAR-10
(n = 2500), where 5 passes over the unlabeled examples, less those for validation, would be 40.
"""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from jaxfed.config import base

AT_CLIENTS = (
    *("fedavg", "fixmatch", "fixmatch_gpl", "flexmatch", "freematch", "fedlabel"),
    *("feddb", "feddure", "twinsight", "proxyfl", "fedloke", "rscfed", "cbafed"),
    *("sage_xclp", "fedavg_xclp"),
)
AT_SERVER = ("semifl", "fl2", "fedcon")
ROUNDS = {"cifar10": 300, "cifar100": 500, "fashion_mnist": 150}  # of `paper`
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "fashion_mnist": 60_000}
ALPHAS = {"dirichlet_01": 0.1, "dirichlet_05": 0.5, "dirichlet_1": 1.0}
SHARES = {"labels_5": 0.05, "labels_10": 0.1, "labels_20": 0.2}
COHORTS = {"participation_5": 1, "participation_20": 4, "participation_100": 0}


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    fashion_mnist pneumonia_mnist cifar10 cifar100      data; without one of them handwritten digits
    dirichlet_01 dirichlet_05 dirichlet_1               how unlike clients are; 0.5 without one of them
    labels_5 labels_10 labels_20                        percent of the examples with a label; 10 without
    one_in_ten server                                   labels at one client in ten, or at the server alone
    participation_5 participation_20 participation_100  percent of the clients in a round; 40 without
    auto                                                XCLP's settings chosen in every round, calibrated
    features                                            of a pretrained network, with 4 views of each kind
    paper                                               the size of the papers
    smoke                                               a few rounds
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.algorithm, config.baselines = "sage", AT_CLIENTS
    config.num_repeats = 3
    config.rounds = 60
    config.cohort_size = 8
    config.evaluate_every = 10
    config.dataset.name = "digits"
    config.dataset.validation_fraction = 0.1
    config.preprocessing.kind = "images"
    federation = config.federation
    federation.num_clients = 20
    federation.partition, federation.dirichlet_alpha = "dirichlet", 0.5
    federation.skew = "independent"
    federation.labeled_fraction = 0.1
    federation.min_size = 10
    federation.test = "central"
    config.model.name, config.model.hidden = "mlp", (128,)
    training = config.training
    training.weighting = "uniform"  # for all methods alike
    training.batches, training.unlabeled_ratio = "paired", 2
    training.batch_size, training.epochs = 10, 2
    training.learning_rate, training.momentum, training.weight_decay = 0.1, 0.0, 1e-4
    training.strong_augmentation = ("translate:1", "cutout:3")
    config.xclp.tolerance = 1e-4
    config.fixmatch_gpl = ConfigDict({"algorithm": "fixmatch", "labeled_by": "received"})
    config.fixmatch_xclp = ConfigDict(
        {"algorithm": "fixmatch", "labeled_by": "received", "pseudo_label": "xclp"}
    )
    config.flexmatch = ConfigDict({"algorithm": "fixmatch", "thresholds": "flexmatch"})
    config.rscfed = ConfigDict({"beta": 300.0})  # 10^4 is for clients with thousands of examples
    config.twinsight = ConfigDict({"training": {"learning_rate": 0.03}})
    config.freematch = ConfigDict({"algorithm": "fixmatch", "thresholds": "freematch"})
    return base.apply_variants(
        config, variant, VARIANTS, exclusive=[ROUNDS, ALPHAS, SHARES, COHORTS, _PLACES]
    )


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over how unlike clients are."""
    for alpha in ALPHAS.values():
        add(**{"federation.dirichlet_alpha": alpha})


def _fashion_mnist(config: ConfigDict) -> None:
    _images(config, "fashion_mnist", train_size=4000)
    config.training.augmentation = ("translate:2", "flip")
    config.training.strong_augmentation = ("translate:4", "flip", "cutout:14")


def _pneumonia_mnist(config: ConfigDict) -> None:
    _images(config, "pneumonia_mnist", train_size=0)
    config.dataset.test_size = 0
    config.training.augmentation = ("translate:2", "flip")
    config.training.strong_augmentation = ("translate:4", "flip", "cutout:14")


def _cifar(config: ConfigDict, name: str) -> None:
    _images(config, name, train_size=5000)
    config.training.augmentation = ("translate:4", "flip")
    config.training.strong_augmentation = ("translate:4", "flip", "cutout:16")


def _images(config: ConfigDict, name: str, train_size: int) -> None:
    config.dataset.name = name
    config.dataset.train_size, config.dataset.test_size = train_size, 2000
    config.rounds = 60
    config.model = ConfigDict({"name": "cnn"})


def _auto(config: ConfigDict) -> None:
    base.auto(config)
    config.xclp.confidence = "calibrated"


def _features(config: ConfigDict) -> None:
    config.preprocessing.kind, config.preprocessing.views = "pretrained", 4
    config.preprocessing.image_size, config.preprocessing.components = 128, 128
    config.model = ConfigDict({"name": "mlp", "hidden": (128,)})


def _set(config: ConfigDict, key: str, value: float) -> None:
    section, _, leaf = key.rpartition(".")
    (config[section] if section else config)[leaf] = value


def _server(config: ConfigDict) -> None:
    config.federation.labels_at = "server"
    config.federation.skew = "both"
    config.training.server_epochs = 5
    at_clients = ("fedloke", "cbafed", "feddure", "twinsight", "fedavg_xclp")
    config.baselines = (*(name for name in AT_CLIENTS if name not in at_clients), *AT_SERVER)
    config.semifl = ConfigDict({"training": {"server_momentum": 0.5}})


def _paper(config: ConfigDict) -> None:
    config.dataset.train_size = config.dataset.test_size = 0
    config.rounds = ROUNDS.get(config.dataset.name, 100)
    if config.dataset.name.startswith("cifar"):
        config.model = ConfigDict({"name": "cifar_resnet8"})
    if config.federation.skew == "independent":  # the deal of SAGE's code
        config.federation.partition, config.federation.skew = "dirichlet_pairs", "both"
        config.federation.min_size = 0
    training = config.training
    training.epochs, training.batch_size = 5, 128
    examples = IMAGES.get(config.dataset.name, 0) // 20  # of a client
    training.local_steps = 5 * (examples // 128)  # as in SAGE's code
    if training.local_steps:
        training.epochs = 12  # passes in so many steps, each in a new order
    training.momentum = 0.9
    config.rscfed.beta = 1e4
    training.strong_augmentation = (*training.augmentation, "randaugment:2:10")


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats, config.evaluate_every = 1, 1


_PLACES = ("one_in_ten", "server")
VARIANTS: dict[str, base.Variant] = {
    "fashion_mnist": _fashion_mnist,
    "pneumonia_mnist": _pneumonia_mnist,
    "cifar10": partial(_cifar, name="cifar10"),
    "cifar100": partial(_cifar, name="cifar100"),
    **{
        name: partial(_set, key="federation.dirichlet_alpha", value=value)
        for name, value in ALPHAS.items()
    },
    **{
        name: partial(_set, key="federation.labeled_fraction", value=value)
        for name, value in SHARES.items()
    },
    **{name: partial(_set, key="cohort_size", value=value) for name, value in COHORTS.items()},
    "one_in_ten": partial(_set, key="federation.num_labeled_clients", value=2),
    "server": _server,
    "auto": _auto,
    "features": _features,
    "paper": _paper,
    "smoke": _smoke,
}
