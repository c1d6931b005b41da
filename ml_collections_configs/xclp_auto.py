r"""XCLP with settings chosen by its labels, against the paper's and the best fixed ones, on many data sets.

Labels are few, classes imbalanced, clients homogeneous and heterogeneous, and alpha is not tuned. Every set
has 1, 2, 5 and 10 % of labels, split among ten clients by Dirichlet(0.1), (0.3), (1) and at random, three
seeds. `xclp_auto` is the variant `auto` of all configs (`jaxfed.xclp.selection.choice`). `xclp_auto_balanced`
chooses by balanced hits (`select_measure`), on sets with imbalanced classes. Label propagation inside clients
and on pooled data choose in the same way. kNN on a client's own labels has one neighbor and five.

    python -m launch.sweep --config=ml_collections_configs/xclp_auto.py:digits --workdir=runs/xclp_auto/digits

    export JAXFED_DATA=DIR    # with fashion_mnist, cifar10, chars74k_hnd, wine_quality, adult, covertype
    for SET in fashion_mnist fashion_mnist_features cifar10_features chars74k breast_cancer wine_quality \
        adult covertype
    do
        python -m launch.sweep --config=ml_collections_configs/xclp_auto.py:$SET --workdir=runs/xclp_auto/$SET
    done
    python -m launch.report runs/xclp_auto/* --out=results/xclp_auto

The fixed settings are plausible defaults. The best of them is known only from test labels, so it is an upper
bound, not a method. Tables are standardized, as their columns' units would otherwise dominate every cosine.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import base


class Set(NamedTuple):
    """A data set: its name, the numbers of examples used, and the preprocessing."""

    name: str
    train_size: int = 0
    test_size: int = 0
    preprocessing: str = "identity"
    are_unequal: bool = False  # True for imbalanced classes


SETS = {
    "digits": Set("digits"),
    "fashion_mnist": Set("fashion_mnist", 3200, 800),
    "fashion_mnist_features": Set("fashion_mnist", 5000, 1000, "pretrained"),
    "cifar10_features": Set("cifar10", 5000, 1000, "pretrained"),
    "chars74k": Set("chars74k_hnd/chars74k_hnd_28.npz"),
    "breast_cancer": Set("breast_cancer", 0, 0, "standardized", True),
    "wine_quality": Set("wine_quality", 3200, 800, "standardized", True),
    "adult": Set("adult", 3200, 800, "standardized", True),
    "covertype": Set("covertype", 3200, 800, "standardized", True),
}
FIXED: dict[str, dict[str, object]] = {
    "xclp_plain_90": {"alpha": 0.9},
    "xclp_balanced_99": {"label_matrix": "class_balanced", "alpha": 0.99},
    "xclp_balanced_95": {"label_matrix": "class_balanced", "alpha": 0.95},
    "xclp_balanced_80": {"label_matrix": "class_balanced", "alpha": 0.8},
    "xclp_prior": {"label_matrix": "class_balanced", "alpha": 0.95, "client_prior": 1.0},
}


def get_config(variant: str = "") -> ConfigDict:
    """Variants: a set, by default `digits`; smoke, two repeats of digits."""
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.num_repeats = 3
    config.federation.labeled_fraction = 0.02
    base.beside_auto(config, ("xclp", "per_client_lp", "pooled_lp"))
    config.algorithm = "xclp_auto"
    for name, settings in FIXED.items():
        config[name] = ConfigDict({"algorithm": "xclp", **settings})
    config.client_knn.num_neighbors = 1
    config.client_knn_5 = ConfigDict({"algorithm": "client_knn", "num_neighbors": 5})
    config.baselines = (
        *("xclp", *FIXED),
        *("per_client_lp_auto", "client_knn", "client_knn_5", "pooled_lp_auto"),
    )
    _set(config, "digits")
    return base.apply_variants(config, variant, VARIANTS, exclusive=[tuple(SETS)])


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over shares of labels, and over clients from the most heterogeneous to homogeneous."""
    del variant
    for alpha in (0.1, 0.3, 1.0):
        for fraction in FRACTIONS:
            add(
                **{"federation.partition": "dirichlet", "federation.dirichlet_alpha": alpha},
                **{"federation.labeled_fraction": fraction},
            )
    for fraction in FRACTIONS:
        add(**{"federation.partition": "iid", "federation.labeled_fraction": fraction})


FRACTIONS = (0.01, 0.02, 0.05, 0.1)


def _set(config: ConfigDict, name: str) -> None:
    found = SETS[name]
    config.dataset.name = found.name
    config.dataset.train_size, config.dataset.test_size = found.train_size, found.test_size
    config.preprocessing.kind = found.preprocessing
    if found.are_unequal:
        own = {**config.xclp_auto.to_dict(), "select_measure": "balanced_accuracy"}
        config.xclp_auto_balanced = ConfigDict(own)
        config.baselines = ("xclp_auto_balanced", *config.baselines)


VARIANTS: dict[str, base.Variant] = {name: partial(_set, name=name) for name in SETS}
