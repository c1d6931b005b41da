r"""FedCT beside its baselines: clients share labels of public examples, whatever they learn with.

Without a download, trees of scikit-learn (455 examples, 370 of them public, 5 clients):

    python -m launch.run --config=ml_collections_configs/fedct.py --workdir=runs/fedct_breast_cancer

The interpretable models of Table 2, a cell a variant, of whichever learner is named beside it
(`decision_tree`, `random_forest`; `xgboost` and `rulefit` with
requirements-learners.txt):

    export JAXFED_DATA=DIR    # with wine_quality, adult, mushroom, covertype
    for CELL in wine_quality breast_cancer adult mushroom covertype
    do
        python -m launch.run --config=ml_collections_configs/fedct.py:$CELL,decision_tree \
            --workdir=runs/fedct/$CELL-decision_tree
        python -m launch.run --config=ml_collections_configs/fedct.py:$CELL,random_forest \
            --workdir=runs/fedct/$CELL-random_forest
    done

Learners of different kinds, Table 3 (its third row is `xgboost`):

    python -m launch.run --config=ml_collections_configs/fedct.py:mixed --workdir=runs/fedct/mixed
    python -m launch.run --config=ml_collections_configs/fedct.py:mixed_network --workdir=runs/fedct/mlp

Networks take b steps a communication in T / b rounds (Table 7). Table 1 has its DP columns in runs of their
own, because DP-FedAvg takes no BatchNorm. Its VUL is measured by `launch.audit` in place of `launch.run` (on
how many labels: `_fedct_paper.py`), for FedAvg with E.1's K by --config.audit.rounds. Table 4, and
100 clients of it with --config.federation.num_clients=100. Table 5. Appendix C.4:

    export JAXFED_DATA=DIR    # with cifar10, cifar100, fashion_mnist, svhn_cropped, pneumonia, brain_mri
    for IMAGE in fashion_mnist cifar10 svhn pneumonia pneumonia_mnist brain_mri
    do
        python -m launch.run --config=ml_collections_configs/fedct.py:$IMAGE,local,dd,fedavg \
            --workdir=runs/fedct/$IMAGE
        python -m launch.run --config=ml_collections_configs/fedct.py:$IMAGE,dp,dp_fedavg \
            --workdir=runs/fedct/$IMAGE-private
        python -m launch.run --config=ml_collections_configs/fedct.py:$IMAGE,pate \
            --workdir=runs/fedct/$IMAGE-pate
    done
    for ALPHAS in severe pathological
    do
        python -m launch.run --config=ml_collections_configs/fedct.py:fashion_mnist,$ALPHAS,fedavg,dd \
            --workdir=runs/fedct/fashion_mnist-$ALPHAS
    done
    python -m launch.run --config=ml_collections_configs/fedct.py:cifar100_superclasses,fedmd \
        --workdir=runs/fedct/cifar100

Figure 1 (Proposition 1): `change_probability` of `jaxfed.training.consensus`. Figures 2 and 7
are plots of the runs of Tables 1 and 5 (`clients`, in `launch.report`), Figure 3 is one of

    python -m launch.run --config=ml_collections_configs/fedct.py:fashion_mnist,heterogeneous,fedavg \
        --workdir=runs/fedct/fashion_mnist-heterogeneous

Sweeps, of any cell: eps of a communication (Figure 4: DP-FedCT by three mechanisms, FedCT, clients alone),
clients (Figures 5, 6), sizes of U beside what clients keep (Figure 8), eps of whole runs (both DP-FedAvg):

    python -m launch.sweep --config=ml_collections_configs/fedct.py:epsilons --workdir=runs/fedct/epsilons
    python -m launch.sweep --config=ml_collections_configs/fedct.py:clients --workdir=runs/fedct/clients
    python -m launch.sweep --config=ml_collections_configs/fedct.py:public --workdir=runs/fedct/public
    python -m launch.sweep --config=ml_collections_configs/fedct.py:mushroom,network,budgets \
        --workdir=runs/fedct/budgets

and as in the paper, whose sensitivity is `paper_rows`:

    python -m launch.sweep --config=ml_collections_configs/fedct.py:fashion_mnist,epsilons,paper_rows \
        --workdir=runs/fedct/4
    python -m launch.sweep --config=ml_collections_configs/fedct.py:fashion_mnist,clients,fedavg \
        --workdir=runs/fedct/5
    python -m launch.sweep --config=ml_collections_configs/fedct.py:pneumonia,public_200,clients,fedavg \
        --workdir=runs/fedct/6
    python -m launch.sweep --config=ml_collections_configs/fedct.py:pneumonia,public --workdir=runs/fedct/8

Differences from the paper, and settings that it does not state:

  * With another data set (`--config.dataset.name`) half of the training examples are public.
  * Sizes are Table 7's if they add up; its training size is that of all clients together. Covertype is
    reduced to 20,000 rows; PneumoniaMNIST has smaller copies of its chest X-rays.
  * Estimators are fitted anew in each round, and labels converge in few rounds: 10.
  * All images are normalized, channel by channel over the training examples; in E.2 only CIFAR-10's are.
  * Steps of one round are b of FedCT for all: FedAvg, distributed distillation, both halves of FedMD. PATE's
    teachers learn in the first half of the rounds and the student in the second, with 2 b steps a round, so
    each takes T in all ("to convergence" in the paper); estimators teach after one fit.
  * rho of distributed distillation; FedMD's transfer steps (C.4 states neither these nor |U|, network and b).
  * C.5 keeps 100 examples, here per client; in sweeps of tables and other images, the cell's number.
  * Heterogeneous data: 9 tenths are drawn by one alpha, as in C.4 and the authors' code; Section 5 has half.
  * Bounds and noise of DP-FedAvg. For clients (`dp_fedavg`, the paper's) with 5 of them, noise small enough
    for learning gives almost no privacy; for records (`dp_fedavg_records`) it can give some. Neither supports
    BatchNorm: networks that have it get group normalization, for all methods of the run.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from _fedct_paper import CELLS, IMAGES, images, table
from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    wine_quality breast_cancer adult mushroom covertype     tables
    fashion_mnist cifar10 svhn pneumonia pneumonia_mnist brain_mri              images, with networks
    cifar100_superclasses           classes are superclasses, of each of which a client has one class (C.4)
    decision_tree random_forest xgboost rulefit network                         what clients learn with
    mixed mixed_network             five kinds of trees and rules, one a client (Table 3); with a network
    qualified                       clients abstain where fewer than 4 of 5 agree
    masked                          votes by masked sums: the server sees their histogram alone
    dp                              XOR mechanism, eps = 10 a communication, all of U sensitive
    paper_rows estimated            with dp, epsilons: 1,500 labels sensitive, the paper's s = 3000 bits;
                                    as many as 100 neighbors say in the first round, which proves nothing
    heterogeneous                   9 tenths of clients' data by Dirichlet(2), the rest by Dirichlet(100)
    severe pathological             the same by Dirichlet(0.01), and the rest too (Table 5)
    local centralized dd fedmd pate fedavg dp_fedavg dp_fedavg_records
                                    baselines, those named; without any local and centralized
    epsilons clients public budgets what a sweep goes over, one of them; `epsilons` is of DP-FedCT, as
                                    `dp_fedct`, `budgets` of DP-FedAvg
    public_200                      |U| = 200 (Figure 6)
    smoke                           two rounds
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.algorithm = "fedct"
    config.baselines = ()
    config.num_repeats = 3
    config.rounds = 10
    config.federation.num_clients = 5
    config.federation.labeled_fraction = 1.0
    config.federation.test = "central"
    config.training.weighting = "uniform"  # for all methods alike
    config.training.optimizer = "adam"
    config.training.learning_rate = 1e-3
    config.training.batches = "joint"
    config.training.batch_size = 64
    config.model.hidden = (64,)
    config.learner.name = "decision_tree"
    config.fedct = ConfigDict(
        {
            "steps": 50,
            "consensus": "majority",
            "threshold": 0.0,
            "sums": "plaintext",
            "presence": (),
            "release": "none",
            "epsilon": 1.0,
            "sensitivity": "rows",
            "rows": 0,
            "stability_rate": 0.0,
            "stability_delta": 1e-5,
            "neighbors": 100,
            "condition": "exact",
            "delta": 1e-5,
        }
    )
    config.training.local_steps = config.fedct.get_oneway_ref("steps")  # of FedAvg
    for name in ("local_learning", "centralized"):
        config[name] = ConfigDict({"steps": config.fedct.get_oneway_ref("steps")})
    noise = {"clip": 1.0, "noise_multiplier": None, "target_epsilon": 0.0, "delta": 1e-5}
    config.dp_fedavg = ConfigDict(dict(noise))
    config.dp_fedavg_records = ConfigDict({**noise, "share": 0.05})
    table(config, "breast_cancer")
    config = base.apply_variants(config, variant, VARIANTS, exclusive=EXCLUSIVE)
    if config.algorithm in BESIDE:
        config.baselines = (*BESIDE[config.algorithm], *(config.baselines or ("local_learning",)))
    elif not config.baselines:
        config.baselines = ("local_learning", "centralized")
    config.paper_table = _paper_table(config) if not AXES.keys() & variant.split(",") else ""
    return config


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over the axis that the variant names; by default over numbers of clients."""
    names = variant.split(",")
    (over,) = [name for name in names if name in AXES] or ["clients"]
    config = get_config(variant)
    most = config.federation.public_size
    values = AXES[over]
    if over == "epsilons":
        values = _reaching(values, min(config.dp_fedct.rows or most, most))
    for value in values:
        if over == "public":
            add(**{"federation.public_size": max(1, round(value * most))})
        else:
            add(**{KEYS[over]: value})


def _reaching(epsilons: tuple[float, ...], rows: int) -> tuple[float, ...]:
    """Extend the values of eps to ten per sensitive label, where noisy labels become useful."""
    steps = itertools.pairwise((epsilons[-1], 3e5, 1e6, 3e6, 1e7))
    return (*epsilons, *(after for before, after in steps if before < 10 * rows))


AXES: dict[str, tuple[float, ...]] = {
    "epsilons": (0.1, 1.0, 10.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5),
    "clients": (5, 10, 20, 40, 80),
    "public": (0.1, 0.25, 0.5, 1.0),
    "budgets": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
}
KEYS = {
    "epsilons": "dp_fedct.epsilon",
    "clients": "federation.num_clients",
    "budgets": "dp_fedavg_records.target_epsilon",
}
# Other label noise than that of `dp_fedct`, which flips bits with the least noise for its epsilon.
MECHANISMS: dict[str, dict[str, str]] = {
    "dp_fedct_paper": {"release": "xor", "condition": "paper"},
    "dp_fedct_answers": {"release": "randomized_response"},
}
# Baselines in sweeps of a method's epsilon.
BESIDE = {"dp_fedct": (*MECHANISMS, "fedct"), "dp_fedavg_records": ("dp_fedavg", "fedavg")}
BASELINES = {
    "local": "local_learning",
    "centralized": "centralized",
    "dd": "distributed_distillation",
    "fedmd": "fedmd",
    "pate": "pate",
    "fedavg": "fedavg",
    "dp_fedavg": "dp_fedavg",
    "dp_fedavg_records": "dp_fedavg_records",
}
WITH_BATCH_NORM = ("fedct_cifar10", "fedct_svhn", "fedct_pneumonia", "fedct_mri")
_TREES = ("decision_tree", "random_forest", "rulefit", "xgboost", "random_forest")
_ALIKE = ("decision_tree", "random_forest", "xgboost", "rulefit", "network")
_MIXED = {"mixed": _TREES, "mixed_network": ("decision_tree", "network", *_TREES[2:])}


def _paper_table(config: ConfigDict) -> str:
    """The paper's table for these data, learners and clients."""
    if config.dataset.name in CELLS:
        if config.learner.name == "mixed":
            return "fedct/3" if config.dataset.name == "breast_cancer" else ""
        return "" if config.learner.name == "network" else "fedct/2"
    if config.federation.partition == "subclasses":
        return "fedct/C.4"
    if config.federation.partition != "iid":
        is_there = config.dataset.name == "fashion_mnist" and config.federation.dirichlet_alpha < 1
        return "fedct/5" if is_there else ""
    return "fedct/4" if config.baselines == ("pate",) else "fedct/1"


def _learner(config: ConfigDict, name: str) -> None:
    config.learner.name = name


def _mixture(config: ConfigDict, names: tuple[str, ...]) -> None:
    config.learner.name, config.learner.names = "mixed", names


def _fedct(config: ConfigDict, **settings: Any) -> None:
    config.fedct.update(settings)


def _heterogeneous(config: ConfigDict, alpha: float = 2.0, rest: float = 100.0) -> None:
    config.federation.partition = "dirichlet_mixture"
    config.federation.dirichlet_alpha, config.federation.dirichlet_alpha_rest = alpha, rest


def _epsilons(config: ConfigDict) -> None:
    """DP-FedCT from the paper's eps 0.1 to useful labels; baselines without noise and without labels."""
    config.algorithm = "dp_fedct"
    sensitive = {key: config.fedct[key] for key in ("sensitivity", "rows", "stability_rate")}
    config.fedct.update(sensitivity="rows", rows=0)  # of FedCT itself, which has no noise
    alike = {"epsilon": 10.0, **sensitive}
    config.dp_fedct = ConfigDict({"algorithm": "fedct", "release": "xor", **alike})
    for name, settings in MECHANISMS.items():
        config[name] = ConfigDict({"algorithm": "fedct", **settings})
        for key in alike:
            config[name][key] = config.dp_fedct.get_oneway_ref(key)


def _budgets(config: ConfigDict) -> None:
    """DP-FedAvg of records and of clients, with noise set by the epsilon of a whole run."""
    config.algorithm = "dp_fedavg_records"
    config.dp_fedavg_records.target_epsilon = 8.0
    config.dp_fedavg.target_epsilon = config.dp_fedavg_records.get_oneway_ref("target_epsilon")
    _private(config)


def _private(config: ConfigDict) -> None:
    """Leave out batch statistics, and exact statistics of clients' rows: public examples scale inputs."""
    if config.preprocessing.kind == "standardized":
        config.preprocessing.kind = "identity"
    if config.model.name in WITH_BATCH_NORM:
        config.model.norm = "group"


def _masked_neighbors(config: ConfigDict) -> None:
    """Sum the votes of 40 clients under masks with 16 others each, the fewest that are allowed."""
    config.federation.num_clients = 40
    _fedct(config, sums="masked_resilient", mask_partners=16)


def _public_200(config: ConfigDict) -> None:
    config.federation.public_size = 200


def _public(config: ConfigDict) -> None:
    """Keep the clients' number of examples fixed while U is swept."""
    name = config.dataset.name
    images = {cell.dataset or key: cell for key, cell in IMAGES.items()}
    config.federation.own_size = (CELLS[name] if name in CELLS else images[name]).own_size


def _baseline(config: ConfigDict, name: str) -> None:
    config.baselines = (*config.baselines, name)
    steps = config.fedct.get_oneway_ref("steps")
    if name == "distributed_distillation":
        config[name] = ConfigDict({"steps": steps})
    elif name == "fedmd":
        config[name] = ConfigDict({"digest_steps": steps, "revisit_steps": steps})
    elif name == "pate" and "network" in (config.learner.name, *config.learner.names):
        config[name] = ConfigDict(
            {
                "teacher_rounds": (config.get_oneway_ref("rounds") + 1) // 2,
                "steps": steps * 2,
                "student_steps": steps * 2,
            }
        )
    if name.startswith("dp_"):
        _private(config)


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats = 1
    config.evaluate_every, config.evaluate_test = 0, False
    config.fedct.steps = config.fedct.neighbors = 3
    if "fedmd" in config.baselines:
        config.fedmd.update(transfer_steps=3, private_steps=3)
    if config.dataset.name == "breast_cancer":
        return
    config.dataset.image_size = min(config.dataset.image_size, 32)
    size, most = config.federation.public_size, 2000
    if config.model.name in WITH_BATCH_NORM:  # convolutions, which are slow
        most, config.training.batch_size = 500, 16
    config.dataset.train_size = min(config.dataset.train_size or most, most)
    config.dataset.test_size = min(config.dataset.test_size or 200, 200)
    config.audit.update(members=2, population=10, shadows=8)
    config.federation.public_size = min(size, config.dataset.train_size // 2)
    left = config.dataset.train_size - config.federation.public_size
    config.federation.own_size = min(config.federation.own_size, left)


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    **{name: partial(table, name=name) for name in CELLS},
    **{name: partial(images, name=name) for name in IMAGES},
    **{name: partial(_learner, name=name) for name in _ALIKE},
    **{name: partial(_mixture, names=names) for name, names in _MIXED.items()},
    "qualified": partial(_fedct, consensus="qualified_majority", threshold=0.8),
    "masked": partial(_fedct, sums="masked_resilient"),
    "masked_neighbors": _masked_neighbors,
    "dp": partial(_fedct, release="xor", epsilon=10.0),
    "paper_rows": partial(_fedct, rows=1500),
    "estimated": partial(_fedct, sensitivity="estimated"),
    "heterogeneous": _heterogeneous,
    "severe": partial(_heterogeneous, alpha=0.01),
    "pathological": partial(_heterogeneous, alpha=0.01, rest=0.01),
    "epsilons": _epsilons,
    "clients": lambda config: None,
    "budgets": _budgets,
    "public_200": _public_200,
    "public": _public,
    **{name: partial(_baseline, name=method) for name, method in BASELINES.items()},
    "smoke": _smoke,
}
# At most one of each.
DATA = (*CELLS, *IMAGES)
LEARNERS = (*_ALIKE, *_MIXED)
EXCLUSIVE = [
    *(DATA, LEARNERS, tuple(AXES)),
    *(("dp", "epsilons"), ("public", "public_200")),
    ("paper_rows", "estimated"),
    *(("budgets", name) for name in ("dp_fedavg", "dp_fedavg_records", "fedavg")),
    ("heterogeneous", "severe", "pathological"),
]
