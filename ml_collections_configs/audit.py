r"""Accuracy against vulnerability: who infers which examples clients have, from what a method sends.

Every method on the same clients, and the strongest membership inference on each (`launch.audit`; FedCT,
arXiv 2310.05696, Table 1 and Appendix E.1; attacks: `jaxfed.privacy.membership`; who sees what:
docs/threat-model.md). Without a download, ten rounds on digits:

    python -m launch.audit --config=ml_collections_configs/audit.py --workdir=runs/audit_digits

and on cells sized for two cores:

    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist, cifar10
    python -m launch.audit --config=ml_collections_configs/audit.py:fashion_mnist \
        --workdir=runs/audit_fashion_mnist
    python -m launch.audit --config=ml_collections_configs/audit.py:cifar10 --workdir=runs/audit_cifar10

What is decided here: 5 clients as in that paper; train and test split are one pool of which the members' and
the others' halves are drawn, so that nothing but membership sets them apart; a client's unlabeled examples,
which semi-supervised methods use, are twice as many as its labels, and nobody is asked about them; every
client learns from as many mini-batches a round in every method but ProtoFSSL, whose steps are episodes.
Methods that label in one shot have one round, and are looked at in it.
Networks are given time to overfit, as they are where membership is inferred at all.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import base

METHODS = (
    "local_learning",
    "distributed_distillation",
    "fedmd",
    "pate",
    "fedavg",
    "fedprox",
    "fixmatch",
    "protofssl",
    "fedavg_xclp",
    "xclp",
    "centralized",
)
# With `every_method`. SemiFL, (FL)^2 and FedCon learn from the server's labels, which no client's members
# have; `network` labels by a model that was there before, and nobody sends anything. No attack here reads the
# sums of heads (Fed3R's of few points tell the points: docs/threat-model.md).
OTHERS = (
    *("fedavg_network", "fedsem", "fedavg_per_client_lp", "fedavg_xclp_prototypes"),
    *("scaffold", "feddyn", "mixmatch", "fedmatch", "fedsiam", "fedrgd"),
    *("sage", "sage_xclp", "fedlabel", "feddb", "rscfed", "cbafed", "proxyfl", "fedloke"),
    *("feddure", "twinsight"),
    *("fedirm", "fedper", "fedrep", "fedproto", "fedtgp", "dsfl"),
    *("per_client_lp", "pooled_lp", "client_knn"),
)


class Cell(NamedTuple):
    """Sizes: of clients in all, labels among them, public examples, held-out ones; rounds; the network."""

    train_size: int
    num_labeled: int
    public_size: int
    test_size: int
    rounds: int
    population: int
    model: dict[str, object]


CELLS = {
    "digits": Cell(900, 250, 150, 600, 10, 100, {"name": "mlp", "hidden": (128,)}),
    "fashion_mnist": Cell(5000, 1000, 2000, 3000, 20, 1000, {"name": "mlp", "hidden": (128, 128)}),
    "cifar10": Cell(5000, 1000, 2000, 3000, 40, 1000, {"name": "cnn"}),
}


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    fashion_mnist cifar10           in place of digits
    heterogeneous                   labels by Dirichlet(0.5)
    every_method                    all of the package whose clients have labels
    dp                              with DP-FedCT, eps = 10 a communication and all of U sensitive, and with
                                    DP-FedAvg of clients and of records (requirements-privacy.txt)
    masked                          FedAvg alone, with updates in the clear and under masks
    smoke                           two rounds, few methods and shadow models
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.algorithm = "fedct"
    config.baselines = METHODS
    config.num_repeats = 3
    config.dataset.pooled = True
    config.preprocessing.kind = "images"
    config.federation.num_clients = 5
    config.federation.test = "central"
    config.training.weighting = "uniform"  # for all methods alike
    config.training.optimizer = "adam"
    config.training.learning_rate = 1e-3
    config.training.batches = "joint"
    config.training.batch_size = 50
    config.training.local_steps = 10
    config.training.strong_augmentation = ("translate:2", "cutout:4")
    config.learner.name = "network"
    steps = config.training.get_oneway_ref("local_steps")
    for name in ("fedct", "local_learning", "centralized", "distributed_distillation"):
        config[name] = ConfigDict({"steps": steps})
    config.pate = ConfigDict({"steps": steps, "student_steps": steps, "teacher_rounds": 5})
    config.fedmd = ConfigDict(
        {"transfer_steps": 0, "private_steps": steps, "digest_steps": steps, "revisit_steps": steps}
    )
    config.dsfl = ConfigDict({"steps": steps, "distill_steps": steps})
    config.protofssl = ConfigDict({"unlabeled_query": 40})
    config.fedmatch = ConfigDict(
        {"supervised_weight": 1.0, "consistency_weight": 0.01, "l2_weight": 1e-3, "l1_weight": 1e-6}
    )
    config.fedrgd = ConfigDict({"num_groups": 2})
    _cell(config, "digits")
    return base.apply_variants(config, variant, VARIANTS, exclusive=[tuple(CELLS)])


def _cell(config: ConfigDict, name: str) -> None:
    cell = CELLS[name]
    config.dataset.name = name
    config.dataset.train_size, config.dataset.test_size = cell.train_size, cell.test_size
    config.federation.num_labeled = cell.num_labeled
    config.federation.public_size = cell.public_size
    config.rounds, config.pate.teacher_rounds = cell.rounds, cell.rounds // 2
    config.audit.population = cell.population
    config.audit.rounds = (cell.rounds // 4, cell.rounds // 2, cell.rounds)
    config.model = ConfigDict(cell.model)


def _heterogeneous(config: ConfigDict) -> None:
    config.federation.partition = "dirichlet"


def _every_method(config: ConfigDict) -> None:
    config.baselines = (*config.baselines, *OTHERS)


def _dp(config: ConfigDict) -> None:
    config.dp_fedct = ConfigDict({"algorithm": "fedct", "release": "xor", "epsilon": 10.0})
    config.baselines = (*config.baselines, "dp_fedct", "dp_fedavg", "dp_fedavg_records")


def _masked(config: ConfigDict) -> None:
    training = ConfigDict({"sums": "masked_resilient"})
    config.masked_fedavg = ConfigDict({"algorithm": "fedavg", "training": training})
    config.algorithm, config.baselines = "masked_fedavg", ("local_learning", "fedavg")


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.pate.teacher_rounds = 1
    config.num_repeats = 1
    named = [name for name in config.baselines if name not in METHODS]
    config.baselines = ("local_learning", "fedavg", "xclp", *named)
    config.audit.rounds = ()
    config.audit.shadows = 8
    config.training.local_steps = 3
    config.dataset.train_size, config.dataset.test_size = 600, 400
    config.federation.num_labeled, config.federation.public_size = 100, 100
    config.audit.population = 50


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    **{name: partial(_cell, name=name) for name in CELLS},
    "heterogeneous": _heterogeneous,
    "every_method": _every_method,
    "dp": _dp,
    "masked": _masked,
    "smoke": _smoke,
}
