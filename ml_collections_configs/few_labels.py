r"""Few labels on frozen features: the graph, heads of one round, both together, and trained networks.

    export JAXFED_DATA=DIR    # with cifar10, cifar100, fashion_mnist, pneumonia_mnist, brain_mri, covertype
    for SET in digits covertype cifar10 fashion_mnist pneumonia_mnist brain_mri cifar100
    do
        python -m launch.sweep --config=ml_collections_configs/few_labels.py:$SET \
            --workdir=runs/few_labels/$SET
        python -m launch.sweep --config=ml_collections_configs/few_labels.py:$SET,linear \
            --workdir=runs/few_labels/$SET-linear
        python -m launch.sweep --config=ml_collections_configs/few_labels.py:$SET,dense \
            --workdir=runs/few_labels/$SET-dense
    done
    python -m launch.report runs/few_labels/* --out=results/few_labels

Ten clients, 1, 2, 5 and 10 labels a class over all of them, Dirichlet(0.1) and (1), five seeds. Images are
the features of EfficientNet-Lite0 at 128 x 128. Settings are the defaults, or chosen by the clients' labels:

    xclp            the paper's settings, alpha 0.99
    xclp_degree     centered, labels divided by the degrees of their class
    xclp_auto       the same, with alpha, label matrix and head by leave-one-out
    xclp_prior      alpha and label matrix by leave-one-out, and each client's label frequencies as a prior
    xclp_head       a ridge on the graph's labels, smoothed over the graph
    fedncm fed3r fedcof          heads of the given labels, centered; lambda by leave-one-out
    per_client_lp client_knn     each client alone

The variants `linear` and `dense` train a linear and a dense network instead: FedAvg on the given labels and
on those of `xclp_head`, and FixMatch. Its strong views are shifts and cutouts of digits, and elsewhere
vectors with a fifth of their entries dropped.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import base


class Set(NamedTuple):
    """A data set: its number of classes, the numbers of examples used, and the preprocessing."""

    num_classes: int
    train_size: int = 0
    test_size: int = 0
    preprocessing: str = "pretrained"
    are_unequal: bool = False  # True for imbalanced classes


SETS = {
    "digits": Set(10, 0, 0, "identity"),
    "covertype": Set(7, 3000, 1000, "standardized", True),
    "cifar10": Set(10, 3000, 1000),
    "cifar100": Set(100, 3000, 1000),
    "fashion_mnist": Set(10, 2000, 1000),
    "pneumonia_mnist": Set(2, 1000, 600, "pretrained", True),
    "brain_mri": Set(2, 0, 0, "pretrained", True),
}
CENTERED = {"center": True, "label_matrix": "degree_balanced"}
CHOSEN = ("alpha:0.8:0.9:0.95", "label_matrix:plain:class_balanced")
HEADS = ("fedncm", "fed3r", "fedcof")


def get_config(variant: str = "") -> ConfigDict:
    """Variants: a set, by default `digits`; linear or dense, networks that are trained; smoke."""
    config = base.get_config()
    config.dataset.test_rows = "shared"
    config.num_repeats = 5
    config.federation.partition, config.federation.dirichlet_alpha = "dirichlet", 0.1
    config.xclp_degree = ConfigDict({"algorithm": "xclp", **CENTERED})
    for row, more in (("xclp_auto", "head"), ("xclp_prior", "client_prior")):
        chosen = {"algorithm": "xclp", **CENTERED, "select": (*CHOSEN, more)}
        config[row] = ConfigDict(chosen)
    config.xclp_head = ConfigDict({**CENTERED, "alpha": 0.9})
    for name in HEADS:
        config[name] = ConfigDict({"center": True})
    config.client_knn.num_neighbors = 1
    graphs = ("xclp_degree", "xclp_auto", "xclp_prior", "xclp_head")
    config.baselines = (*graphs, *HEADS, "per_client_lp", "client_knn")
    _set(config, "digits")
    return base.apply_variants(
        config, variant, VARIANTS, exclusive=[tuple(SETS), ("linear", "dense")]
    )


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over numbers of labels, and over clients that are very unlike and less so."""
    name = next((name for name in variant.split(",") if name in SETS), "digits")
    for alpha in (0.1, 1.0):
        for labels in (1, 2, 5, 10):
            add(
                **{"federation.dirichlet_alpha": alpha},
                **{"federation.num_labeled": labels * SETS[name].num_classes},
            )


def _set(config: ConfigDict, name: str) -> None:
    found = SETS[name]
    config.dataset.name = name
    config.dataset.train_size, config.dataset.test_size = found.train_size, found.test_size
    config.preprocessing.kind = found.preprocessing
    if found.preprocessing == "pretrained":
        config.preprocessing.image_size = 128
    config.federation.num_labeled = 5 * found.num_classes
    if found.are_unequal:
        for row in ("xclp_auto", "xclp_prior", "fed3r", "fedcof"):
            config[row].select_measure = "balanced_accuracy"


def _network(config: ConfigDict, hidden: tuple[int, ...]) -> None:
    config.algorithm = "fedavg"
    config.fedavg = ConfigDict({"training": {"epochs": 2}})  # of a batch or two
    config.fedavg_xclp_head = ConfigDict({"algorithm": "fedavg", "pseudo_label": "xclp_head"})
    config.xclp.update({**CENTERED, "alpha": 0.9})
    config.baselines = ("fedavg_xclp_head", "fixmatch")
    config.training.strong_augmentation = ("drop:0.2",)
    if config.dataset.name == "digits":
        config.preprocessing.kind = "images"
        config.training.strong_augmentation = ("translate:1", "cutout:3")
    config.model.name, config.model.hidden = "mlp", hidden
    config.rounds, config.evaluate_every, config.cohort_size = 50, 10, 0
    training = config.training
    training.batch_size, training.epochs, training.learning_rate = 20, 1, 0.1


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats = 1
    if config.dataset.train_size:
        config.dataset.train_size, config.dataset.test_size = 300, 100


VARIANTS: dict[str, base.Variant] = {
    **{name: partial(_set, name=name) for name in SETS},
    "linear": partial(_network, hidden=()),
    "dense": partial(_network, hidden=(128,)),
    "smoke": _smoke,
}
