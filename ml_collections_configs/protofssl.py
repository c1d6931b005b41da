r"""ProtoFSSL beside its baselines: clients share prototypes and pseudo-label with them.

Table 5's settings (RMSprop at 1e-3, ten episodes a round, n_S = 1, n_Q = 2, n_U = 100, five helpers, lambda =
0.3, T = 0.5). On cells sized for two cores:

    python -m launch.run --config=ml_collections_configs/protofssl.py --workdir=runs/protofssl_digits
    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist, cifar10, svhn_cropped, stl10
    python -m launch.run --config=ml_collections_configs/protofssl.py:fashion_mnist \
        --workdir=runs/protofssl_fashion_mnist
    python -m launch.run --config=ml_collections_configs/protofssl.py:cifar10 \
        --workdir=runs/protofssl_cifar10
    # Learning rates: the report has every method at its own, which the validation split chooses
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10,rates \
        --workdir=runs/protofssl_cifar10_rates --config.num_repeats=1

A column of Table 3 is a variant. Its rows are the methods of one run, those with BN of another run, and those
with all labels of a third (none in the paper for STL-10, where all labels are given already):

    for CELL in cifar10_iid cifar10_noniid svhn_iid svhn_noniid stl10
    do
        python -m launch.run --config=ml_collections_configs/protofssl.py:$CELL \
            --workdir=runs/protofssl/$CELL
        python -m launch.run --config=ml_collections_configs/protofssl.py:$CELL,batch_norm \
            --workdir=runs/protofssl/$CELL-batch_norm
        python -m launch.run --config=ml_collections_configs/protofssl.py:$CELL,fully_supervised \
            --workdir=runs/protofssl/$CELL-fully_supervised
    done

Tables 1 and 2, for which nothing is trained:

    python -m launch.costs --config=ml_collections_configs/protofssl.py:cifar10_iid \
        --config.baselines=mixmatch,fixmatch,fedmatch --out=results/protofssl_costs.json

The other tables and figures are sweeps, of any cell:

    # Table 4, and with fully_supervised its upper half
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,norms \
        --workdir=runs/protofssl/norms
    # Figure 3
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,labels \
        --workdir=runs/protofssl/labels
    # Figure 4, and over 5, 20 and 30 active clients Figure 5
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,helpers \
        --workdir=runs/protofssl/helpers
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,interval \
        --workdir=runs/protofssl/interval
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,helpers,active \
        --workdir=runs/protofssl/helpers_active
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,interval,active \
        --workdir=runs/protofssl/interval_active
    # Tables 7, 8, 9
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,unlabeled_query \
        --workdir=runs/protofssl/unlabeled_query
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,epochs,active \
        --workdir=runs/protofssl/epochs
    python -m launch.sweep --config=ml_collections_configs/protofssl.py:cifar10_iid,noise,batch_norm \
        --workdir=runs/protofssl/noise

Choices where the paper is silent, or its code differs:

  * Data: train and test split together, 54,000 + 3,000 + 3,000 images of CIFAR-10, 54,000 + 2,000 + 2,000
    of SVHN (without `extra`), 10,000 + 1,500 + 1,500 of STL-10 and 98,000 of its unlabelled ones; as many of
    each class, as in the code and in the text's "same number of data per class".
  * Non-iid: FedMatch's table, unlabeled examples only; 490 of them are 245, 73.5, 14.7 and 9.8 of a class on
    average, rounded at random. The code's 243, 73, 15 and 10 make 489 (FixMatch's script has 244), and it
    deals them from the beginning of each class again: what is labeled at one client is unlabeled at another.
  * `cifar10_severe` and `svhn_severe` are in the code only: half of a client's examples are of one class, two
    classes are missing, labels follow; 15 episodes, 200 unlabeled examples in each, and these from round 200
    on; 15 helpers, of which there are no more than clients in a round. With `authors` clients of earlier
    rounds fill up, as in the code, which keeps the prototypes of ten.
  * Aggregation: Eq. (1) weighs clients by |D_i|, the code takes the plain mean, and so does this config
    (`training.weighting`). In the cells of Table 3 clients have as many examples each, and both are the same.
  * Weight decay: Table 5's L2 of 1e-4 is a Keras regularizer, 1e-4 |w|^2, whose gradient is twice that of
    `weight_decay=1e-4`; the code never adds it to a loss. This config takes 1e-4, `authors` none.
  * Baselines of `authors`: FedAvg and FedProx take two steps on all labels, at a rate that falls like a
    cosine over the rounds (the code's cos(15 pi r / 32 R) ends at a tenth of it, this one at 0).
  * The baselines' network is the same with one dense layer more; those without a line of their own have
    RMSprop at that rate, ten epochs. FixMatch has its code's steps (two epochs of 10 labeled and 100
    unlabeled examples a step), weight and threshold; FedMatch trains as its own authors (`fedavg_xclp`).
  * mu is Table 5's; FixMatch-FedProx, which the table omits, has that of FedProx (0.1 in its script).
  * Table 9 does not bound embeddings, so its noise gives no guarantee and its rows print no epsilon. In
    addition, `protofssl_clipped` clips embeddings to `protofssl_clipped.clip` and averages prototypes over
    all labels that a client has of a class, which gives a `prototype_epsilon`. Embeddings of digits have a
    norm of about 10 after 12 rounds (median 10, maximum 12): a clip of 10 changes few of them.
  * Values of Figures 3 to 5 are not printed: labels of a class 2 to 20; helpers 1 to 30, no more than there
    are active clients; intervals 1 to 20. In Figure 4 FedMatch has as many helpers, as often.

Further rows for `--config.baselines`, besides any other method: `protofssl_mean` (prototypes by the mean
network), `protofssl_xclp` (ProtoFSSL that pseudo-labels by XCLP), `fedavg_xclp_prototypes` (XCLP whose
labeled points are clients' prototypes), `mixmatch`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from _protofssl_paper import CELLS, SEVERE, column
from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    cifar10_iid cifar10_noniid svhn_iid svhn_noniid stl10      columns of Table 3, ResNet-8/9
    cifar10_severe svhn_severe      the code's most unlike clients
    fashion_mnist cifar10           3,000 images, 20 clients with 5 labels of each class, a small CNN
    resnet18                        in place of the cell's network; of ProtoFSSL, ResNet-17
    batch_norm group_norm static_batch_norm last_batch_norm     Table 4's norms; static as in HeteroFL, and
                                    as in the code, where statistics are those of the last batch
    global                          Algorithm 2 (B.1): helpers' mean prototypes in place of the client's own
    masked_global                   the same of a mean that masked sums made, so that nobody sees one client's
    authors                         what the authors' code does otherwise: distance, missing classes, newest
                                    helpers, optimizers that go on over rounds at one rate, no weight decay;
                                    FedAvg and FedProx: two steps on all labels, a rate that falls
    fully_supervised                FedAvg and FedProx on all labels
    rates norms labels helpers interval unlabeled_query epochs noise    what a sweep goes over, one of them
    active                          5, 20 and 30 active clients; alone, or across one of those
    steps                           why FedAvg is ahead: FedAvg at ProtoFSSL's ten steps a round and at the
                                    authors' two; ProtoFSSL with optimizers that go on over rounds
    smoke                           two rounds
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
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
    config.training.weighting = "uniform"  # for all methods alike
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
            "targets": "helpers",
            "missing_class": "leave_out",
            "helper_choice": "previous_round",
            "unlabeled_after": 0,
            "min_labels": 1,
            "noise": 0.0,
            "clip": 0.0,
            "prototype_sums": "none",
            "prototype_network": "own",
            "delta": 1e-5,
        }
    )
    config.fixmatch = ConfigDict({"threshold": 0.95, "unlabeled_weight": 0.01})
    config.fedprox = ConfigDict({"mu": 1e-2})
    config.fixmatch_fedprox = ConfigDict(
        {"algorithm": "fixmatch", "mu": config.fedprox.get_oneway_ref("mu")}
    )
    config.protofssl_fedprox = ConfigDict({"algorithm": "protofssl", "mu": 1e-2})
    config.protofssl_xclp = ConfigDict({"algorithm": "protofssl", "targets": "xclp"})
    config.protofssl_mean = ConfigDict({"algorithm": "protofssl", "prototype_network": "mean"})
    return base.apply_variants(config, variant, VARIANTS, exclusive=EXCLUSIVE)


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over the axis of the variant, crossed with active clients by `active`; default: labels."""
    config, names = get_config(variant), variant.split(",")
    (over,) = [name for name in names if name in SWEEPS] or ["" if "active" in names else "labels"]
    points = AXES[over] if over else ({},)
    most = config.federation.num_clients
    active = dict.fromkeys(min(number, most) for number in ACTIVE) if "active" in names else ()
    for number in active or [config.cohort_size]:
        for point in points:
            of_one_round = config.protofssl.helper_choice == "previous_round"
            too_many_helpers = of_one_round and point.get("protofssl.num_helpers", 0) > number
            too_many_labels = config.dataset.name == "digits" and point.get(LABELS, 0) > 10
            if not (too_many_helpers or too_many_labels):
                add(**({"cohort_size": number} if active else {}), **point)


ACTIVE = (5, 20, 30)
LABELS = "federation.labeled_per_class"


def _of(key: str, *values: float) -> tuple[dict[str, Any], ...]:
    return tuple({key: value} for value in values)


_STATIC = {"model.norm": "batch", "training.batch_statistics": "static"}
AXES: dict[str, tuple[dict[str, Any], ...]] = {
    "rates": _of("training.learning_rate", 3e-4, 1e-3, 3e-3),
    "norms": (
        *({"model.norm": norm} for norm in ("none", "batch", "group")),
        _STATIC,
        {"model.norm": "batch", "model.momentum": 0.0},
        {"model.name": "resnet18", "model.stem": "cifar", "model.pool": "max", **_STATIC},
    ),
    "labels": _of(LABELS, 2, 5, 10, 20),
    "helpers": _of("protofssl.num_helpers", 1, 2, 3, 5, 10, 20, 30),
    "interval": _of("protofssl.helper_interval", 1, 2, 5, 10, 20),
    "unlabeled_query": _of("protofssl.unlabeled_query", 10, 20, 30, 50, 100, 200),
    "epochs": _of("training.epochs", 1, 2, 5, 10),
    "noise": _of("protofssl.noise", 0.0, 0.01, 0.05, 0.1, 0.5, 5.0, 10.0),
}


def _small(config: ConfigDict, name: str, pixels: int) -> None:
    """20 clients, a small CNN, few rounds; the methods of Table 3, and XCLP alone and combined with them."""
    config.dataset.name = name
    config.dataset.train_size, config.dataset.test_size = 3000, 2000
    config.rounds = 20
    config.federation.num_clients = 20
    config.federation.labeled_per_class = 5
    config.protofssl.unlabeled_query = 50
    config.model = ConfigDict({"name": "cnn"})
    config.baselines = (
        *("protofssl_mean", "fedavg", "fixmatch", "fedmatch", "fedavg_xclp"),
        *("protofssl_xclp", "fedavg_xclp_prototypes"),
    )
    # Two passes over all examples take more steps than ten passes over the labels.
    passes = ConfigDict({"epochs": 2})
    config.training.strong_augmentation = (f"translate:{pixels}", f"cutout:{4 * pixels}")
    config.fixmatch.training = passes
    config.fedmatch = ConfigDict(
        {"supervised_weight": 1.0, "l2_weight": 1e-3, "l1_weight": 1e-6, "training": passes}
    )
    for name in ("fedavg_xclp", "fedavg_xclp_prototypes"):
        config[name] = ConfigDict({"training": passes})


def _resnet18(config: ConfigDict) -> None:
    config.model = ConfigDict({"name": "resnet18", "stem": "cifar", "pool": "max"})


def _norm(config: ConfigDict, kind: str) -> None:
    """Set the norm of the cell's network, or of a small CNN in place of an MLP, which has none."""
    if config.model.name == "mlp":
        config.model = ConfigDict({"name": "cnn"})
    config.model.norm = kind


def _static_batch_norm(config: ConfigDict) -> None:
    _norm(config, "batch")
    config.training.batch_statistics = "static"


def _last_batch_norm(config: ConfigDict) -> None:
    _norm(config, "batch")
    config.model.momentum = 0.0


def _fully_supervised(config: ConfigDict) -> None:
    config.algorithm, config.baselines = "fedavg", ("fedprox",)
    config.federation.reveal_labels = True


def _swept(config: ConfigDict, *baselines: str, table: int = 0) -> None:
    """Set the methods that a sweep compares, and the paper's table that it reproduces."""
    if config.algorithm == "protofssl":
        config.baselines = baselines
    config.paper_table = f"protofssl/{table}" if table else ""


def _norms(config: ConfigDict) -> None:
    _norm(config, "none")
    _swept(config, table=4)


def _helpers(config: ConfigDict, key: str) -> None:
    """ProtoFSSL and FedMatch; over numbers of active clients ProtoFSSL alone (`_active`)."""
    _swept(config, "fedmatch")
    config.fedmatch = config.get("fedmatch", ConfigDict())
    config.fedmatch[key] = config.protofssl.get_oneway_ref(key)


def _noise(config: ConfigDict) -> None:
    """Table 9, and the same with bounded embeddings, for which noise gives a guarantee."""
    _swept(config, "protofssl_clipped", table=9)
    config.protofssl_clipped = ConfigDict({"algorithm": "protofssl", "clip": 10.0})
    if config.federation.labeled_per_class:
        least = config.federation.get_oneway_ref("labeled_per_class")
        config.protofssl_clipped.min_labels = least


def _active(config: ConfigDict) -> None:
    config.baselines = ()


def _global(config: ConfigDict, sums: str = "none") -> None:
    config.protofssl.prototypes = "global"
    config.protofssl.prototype_sums = sums


# The authors' FedAvg and FedProx: all labels at once, a rate that falls.
TWO_STEPS = {"local_steps": 2, "batch_size": 0, "schedule": "cosine"}


def _authors(config: ConfigDict) -> None:
    config.protofssl.distance = "mean_squared"
    config.protofssl.missing_class = "mean"
    config.protofssl.helper_choice = "newest"
    config.protofssl_fedprox.mu = config.fedprox.mu = 0.0  # the term has no gradient there
    config.training.client_optimizer = "kept"
    config.training.schedule = "constant"
    config.training.weight_decay = 0.0  # declared and never added
    for name in ("fedavg", "fedprox"):
        config[name] = config.get(name, ConfigDict())
        config[name].training = ConfigDict(TWO_STEPS)


def _steps(config: ConfigDict) -> None:
    for name, algorithm, training in (
        ("fedavg_10_steps", "fedavg", {"local_steps": 10}),
        ("fedavg_2_steps", "fedavg", TWO_STEPS),
        ("protofssl_kept", "protofssl", {"client_optimizer": "kept"}),
        ("protofssl_mean_kept", "protofssl", {"client_optimizer": "kept"}),
    ):
        own = {"prototype_network": "mean"} if "mean" in name else {}
        config[name] = ConfigDict({"algorithm": algorithm, **own, "training": training})
    config.baselines = (
        *("protofssl_kept", "protofssl_mean", "protofssl_mean_kept"),
        *("fedavg", "fedavg_10_steps", "fedavg_2_steps"),
    )


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats = 1
    if config.dataset.name != "digits":
        config.dataset.train_size, config.dataset.test_size = 2000, 200
        config.dataset.unlabeled_size = min(config.dataset.unlabeled_size, 500)
        config.federation.num_clients = 5
    if config.federation.num_labeled:
        config.federation.num_labeled = 250
    if config.model.name.startswith("resnet"):
        config.training.epochs = 1
        config.protofssl.unlabeled_query = 10
    config.protofssl.unlabeled_after = min(config.protofssl.unlabeled_after, 1)


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "fashion_mnist": partial(_small, name="fashion_mnist", pixels=2),
    "cifar10": partial(_small, name="cifar10", pixels=4),
    **{name: partial(column, cell=cell) for name, cell in CELLS.items()},
    **{name: partial(column, cell=cell) for name, cell in SEVERE.items()},
    "resnet18": _resnet18,
    "norms": _norms,
    "batch_norm": partial(_norm, kind="batch"),
    "group_norm": partial(_norm, kind="group"),
    "static_batch_norm": _static_batch_norm,
    "last_batch_norm": _last_batch_norm,
    "global": _global,
    "masked_global": partial(_global, sums="masked_resilient"),
    "authors": _authors,
    "fully_supervised": _fully_supervised,
    "rates": lambda config: None,
    "labels": lambda config: _swept(config, "fedavg", "fixmatch", "fedmatch"),
    "helpers": partial(_helpers, key="num_helpers"),
    "interval": partial(_helpers, key="helper_interval"),
    "unlabeled_query": partial(_swept, table=7),
    "epochs": partial(_swept, table=8),
    "noise": _noise,
    "active": _active,
    "steps": _steps,
    "smoke": _smoke,
}
# At most one of each.
DATA = ("fashion_mnist", "cifar10", *CELLS, *SEVERE)
NORMS = ("norms", "batch_norm", "group_norm", "static_batch_norm", "last_batch_norm")
SWEEPS = tuple(AXES)
MEANS = ("global", "masked_global")
# Variants of ProtoFSSL only, which full supervision leaves out.
OF_PROTOFSSL = (*MEANS, "helpers", "interval", "unlabeled_query", "noise")
EXCLUSIVE = [
    *(DATA, NORMS, SWEEPS, MEANS, ("authors", "masked_global")),
    *(("fully_supervised", name) for name in OF_PROTOFSSL),
    *(("steps", name) for name in ("fully_supervised", "active", *SWEEPS)),
]
