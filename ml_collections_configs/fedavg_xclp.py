r"""Training on few labels: FedAvg+XCLP and every method of XCLP's Tables 4 and 5, on one data set.

Algorithm 2, Section 4.2 and Appendix A.2 of XCLP: five epochs of confidence-weighted SGD on batches of
labeled and pseudo-labeled examples, the plain mean of the models, labels by XCLP on the current features
in every round. `fedavg_network` labels by the network itself, `fedsem` by the model of stage 1,
`fedavg_per_client_lp` by label propagation inside each client; `fedavg` takes the given labels only.

    # Digits, which need no download: all five in one run, after 20 rounds of stage 1.
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py --workdir=runs/fedavg_digits

    # Fashion-MNIST, 100 clients of which 20 have one label, a small CNN; sized for two cores. The sweep
    # goes over 20, 50 and 100 labels.
    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist, cifar10, cifar100 in array_record format
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist \
        --workdir=runs/fedavg_fashion_mnist
    python -m launch.sweep --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist \
        --workdir=runs/fedavg_fashion_mnist_sweep
    # The other semi-supervised methods there, with settings for clients of one label.
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist,fixmatch \
        --workdir=runs/fedavg_fashion_mnist_fixmatch
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist,fedmatch \
        --workdir=runs/fedavg_fashion_mnist_fedmatch
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist,fedsiam \
        --workdir=runs/fedavg_fashion_mnist_fedsiam
    # The same over alpha: the report has XCLP and per-client LP at the paper's alpha and at their own best
    # one, which the validation split chooses.
    python -m launch.sweep --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist,alphas \
        --workdir=runs/fedavg_fashion_mnist_alphas

    # XCLP as the paper sets it, as leave-one-out does in every round, and with calibrated confidences too.
    python -m launch.sweep --config=ml_collections_configs/fedavg_xclp.py:fashion_mnist,choosing \
        --workdir=runs/fedavg_fashion_mnist_choosing
    # And where it is a head on a pretrained network's features of CIFAR-10 that is trained.
    python -m launch.sweep --config=ml_collections_configs/fedavg_xclp.py:cifar10_features,choosing \
        --workdir=runs/fedavg_cifar10_features_choosing

A cell of the tables is a variant SET_SPLIT_mL_nL: m_L clients hold n_L labels. Its rows are stage 1, which
is the row of labels only; the rows that start from stage 1; and the two methods that train their own way.
For Mini-ImageNet, DIR/mini_imagenet is a folder of images (`jaxfed.data.readers.images`).

    for CELL in cifar10_iid_100_1000 cifar10_iid_100_5000 cifar10_iid_50_1000 cifar10_iid_50_5000 \
        cifar10_noniid_100_1000 cifar10_noniid_100_5000 cifar10_noniid_50_1000 cifar10_noniid_50_5000 \
        cifar100_iid_50_5000 cifar100_iid_100_10000 \
        mini_imagenet_iid_50_5000 mini_imagenet_iid_100_10000
    do
        python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,labeled_only \
            --workdir=runs/$CELL/labeled_only
        python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL \
            --workdir=runs/$CELL/pseudo_labels \
            --config.training.initial_model=runs/$CELL/labeled_only/states/fedavg-{repeat}
        python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,fedmatch \
            --workdir=runs/$CELL/fedmatch
        python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,fedsiam \
            --workdir=runs/$CELL/fedsiam
        python -m launch.report runs/$CELL/* --out=runs/$CELL/report
    done

Beyond the tables: all labels known (the upper bound), FixMatch at clients, and XCLP with FedProx's or
SCAFFOLD's local steps (Section 4.2), for any cell:

    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,fully_supervised \
        --workdir=runs/$CELL/fully_supervised
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,fixmatch \
        --workdir=runs/$CELL/fixmatch
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,fedprox \
        --workdir=runs/$CELL/fedprox_xclp \
        --config.training.initial_model=runs/$CELL/labeled_only/states/fedavg-{repeat}
    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py:$CELL,scaffold \
        --workdir=runs/$CELL/scaffold_xclp \
        --config.training.initial_model=runs/$CELL/labeled_only/states/fedavg-{repeat}

Settings are the paper's where it gives them. Its text and its authors' code differ; the variant `authors`
does as the code: weights of edges to the power of 3, labels balanced by class, confidences relative to
the largest, of XCLP and per-client LP; weights of classes, over the cohort for XCLP, over each client for
per-client LP, and none for labels of the network; the network's confidences out of its logits; features
normalized (not FedSiam's) and of augmented examples; Mini-ImageNet's random crops; rates 0.3, 0.1 or 0.05
for 50, 20 or fewer labels in a batch. Where the paper is silent:

  * Both stages: 1500 rounds on labels, then 1500 with pseudo-labels, is the authors' code; the paper leaves
    the start open (line 1 of Algorithm 2). Stage 2, and FedSem's teacher, start from the state of stage 1
    that validation selected; the authors start from the last one, states/fedavg-{repeat}-last. Where both
    stages are one run (`training.labeled_only_rounds`) stage 2 goes on from the last state, as theirs.
  * What a run starts from is a candidate of selection, so that a stage 2 that only does harm is reported
    as its start, round 0 ("automatic model selection", Section 4.2). The authors' code selects from round
    10 on, takes the later of equals, and reports the last state of stage 1.
  * Clients: tau m_L of a round's have labels (A.2), which is 2.5 of 5 for m_L = 50; as in the code these are
    3, and all 5 in stage 1 and for per-client LP, where others would be idle.
  * Means: A.2 divides by |P|. A client of P that has neither label nor pseudo-label, and so nothing to train
    on, is left out of the mean and of |P|; `training.weighting` "cohort" keeps both, to the letter. With the
    code's cohorts there is none.
  * Non-iid: the code's split 5, five random classes a client; labels follow it, all examples together
    are iid (A.2: "clients receive labels according to their own distribution").
  * FedMatch trains as its own authors: 200 rounds of one epoch, batches of 10 labels beside which a pass over
    the unlabeled examples ends with theirs, rate 1e-3 without decay, labeled examples as they are, helpers
    in every tenth round, their thresholds of what is sent. Six changes of RandAugment at 4 of 30 are about
    their own draws (6 of 13 changes, uniform below 2 to 5 of 10). Its rate stays where theirs falls.
  * FedSiam is the mean teacher of XCLP's code, from scratch, for as many rounds as stage 1 has; its clients
    without labels take part, which that code leaves out. FixMatch has its paper's optimizer. XCLP's tables
    tuned them for its network, and do not say to what.
"""

from collections.abc import Callable
from functools import partial

from _xclp_training_paper import CELLS, column, unlabeled_per_label
from ml_collections import ConfigDict

from jaxfed.config import base

ALPHAS = (0.5, 0.8, 0.9, 0.95, 0.99)  # the paper's is 0.99


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    SET_SPLIT_mL_nL     a cell of the tables (`CELLS`), for the methods that start from stage 1
    fashion_mnist       100 clients, one label at each of 20, a small CNN
    cifar10_features    the same on CIFAR-10: a hidden layer and a head on a pretrained network's features
    labeled_only        stage 1 alone: FedAvg on the given labels
    fully_supervised    the same on all labels
    fedmatch fedsiam fixmatch fedprox scaffold      that method alone; the last two on XCLP's labels
    auto                XCLP and per-client LP with what leave-one-out chooses in every round
    authors             what the code of XCLP's authors does and the paper does not say
    alphas              the two methods that propagate labels; in a sweep over alpha
    choosing            XCLP's labels beside the network's and none; in a sweep over who chooses its settings
    smoke               six rounds
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.algorithm = "fedavg_xclp"
    config.baselines = ("fedavg", "fedavg_per_client_lp", "fedavg_network", "fedsem")
    config.num_repeats = 3
    config.rounds = 100
    config.cohort_size = 5
    config.sampling = "proportional"
    config.evaluate_every = 10

    config.dataset.name = "digits"
    config.dataset.validation_fraction = 0.1
    config.preprocessing.kind = "images"
    config.federation.num_clients = 20
    config.federation.num_labeled = 100
    config.federation.test = "central"

    config.model.name = "mlp"
    config.model.hidden = (128,)
    config.training.weighting = "uniform"  # for all methods alike
    config.training.learning_rate = 0.1
    config.training.schedule = "cosine"
    config.training.schedule_rounds = 133  # A.2: to 0 after 4/3 of the rounds
    config.training.weight_decay = 2e-4
    config.training.labeled_only_rounds = 20
    config.xclp.tolerance = 1e-4  # of the label propagation: labels are needed, not scores

    # Sections of other methods; FedMatch's weights are those of its paper for this rate, 100 times its own.
    config.training.strong_augmentation = ("translate:1", "cutout:3")
    config.fedmatch = ConfigDict()
    config.fedmatch.supervised_weight = 1.0
    config.fedmatch.l2_weight = 0.1
    config.fedmatch.l1_weight = 1e-6
    config.fedmatch.helper_interval = 1  # in its few rounds
    config.fedsiam = ConfigDict()
    config.fedsiam.rampup_rounds = 5
    config.fedprox = ConfigDict({"mu": 0.01, "pseudo_label": "none"})
    config.scaffold = ConfigDict({"pseudo_label": "none"})
    return base.apply_variants(config, variant, VARIANTS, exclusive=[DATA, METHODS])


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Sweep over the total number of labels; with `fashion_mnist`, each labeled client has one.

    `alphas` crosses them with every alpha, which per-client LP takes from XCLP. For a cell of the tables,
    which fixes the number of labels, it sweeps over the alphas alone. `choosing` keeps the config's number of
    labels and compares the paper's settings, those chosen by leave-one-out (`auto`), and its confidences too.
    """
    names = variant.split(",")
    if "choosing" in names:
        for choice in _choices():
            add(**choice)
        return
    numbers = [] if "alphas" in names and CELLS.keys() & set(names) else [20, 50, 100]
    points = [{"federation.num_labeled": number} for number in numbers] or [{}]
    for point in points:
        if "fashion_mnist" in names:
            point["federation.num_labeled_clients"] = point["federation.num_labeled"]
        for alpha in ALPHAS if "alphas" in names else ():
            add(**point, **{"xclp.alpha": alpha})
        if "alphas" not in names:
            add(**point)


def _fashion_mnist(config: ConfigDict) -> None:
    config.baselines = ("fedavg", "fedavg_per_client_lp", "fedavg_network")
    config.rounds = 140
    config.cohort_size = 0
    config.dataset.name = "fashion_mnist"
    config.dataset.train_size = 10000
    config.federation.num_clients = 100
    config.federation.num_labeled_clients = 20
    config.federation.num_labeled = 20
    config.model = ConfigDict({"name": "cnn"})
    config.training.schedule = "constant"
    config.training.epochs = 1
    config.training.batches = "joint"
    config.training.batch_size = 10
    config.training.labeled_only_rounds = 100


def _cifar10_features(config: ConfigDict) -> None:
    _fashion_mnist(config)
    config.dataset.name = "cifar10"
    config.dataset.train_size = 2500
    config.preprocessing.kind = "pretrained"
    config.model = ConfigDict({"name": "mlp", "hidden": (128,)})


def _choosing(config: ConfigDict) -> None:
    config.algorithm, config.baselines = "fedavg_xclp", ("fedavg", "fedavg_network")


def _choices() -> list[dict[str, object]]:
    chosen = ConfigDict({"xclp": {}})
    base.auto(chosen)
    auto = {f"xclp.{key}": value for key, value in chosen.xclp.items()}
    paper = {key: base.get_config()[key] for key in auto}
    entropy, calibrated = ({"xclp.confidence": kind} for kind in ("entropy", "calibrated"))
    return [{**paper, **entropy}, {**auto, **entropy}, {**auto, **calibrated}]


def _alphas(config: ConfigDict) -> None:
    config.algorithm, config.baselines = "fedavg_xclp", ("fedavg_per_client_lp",)


def _alone(config: ConfigDict, name: str) -> None:
    config.algorithm, config.baselines = name, ()


def _labeled_only(config: ConfigDict) -> None:
    _alone(config, "fedavg")


def _fully_supervised(config: ConfigDict) -> None:
    _alone(config, "fedavg")
    config.federation.reveal_labels = True


def _fedmatch(config: ConfigDict) -> None:
    # Weights of its paper, which go with its rate and batches; thresholds of its authors' code.
    config.fedmatch = ConfigDict({"psi_threshold": 5e-6, "delta_threshold": 5e-5})
    config.rounds = 200
    config.training.epochs = 1
    config.training.learning_rate = 1e-3
    config.training.schedule = "constant"
    config.training.weight_decay = 0.0
    config.training.batch_size = 10
    config.training.unlabeled_ratio = unlabeled_per_label(config)
    config.training.augmentation = ()
    config.training.strong_augmentation = ("randaugment:6:4",)
    config.training.labeled_only_rounds = 0


def _fedsiam(config: ConfigDict) -> None:
    config.fedsiam.consistency_weight = 100.0
    config.fedsiam.rampup_rounds = 5
    config.fedsiam.average = 0.97
    config.fedsiam.supervised_over = "batch"
    config.fedsiam.evaluated = "online"
    config.training.labeled_only_rounds = 0


def _fixmatch(config: ConfigDict) -> None:
    config.training.optimizer = "sgd"
    config.training.learning_rate = 0.03
    config.training.momentum = 0.9
    config.training.nesterov = True
    config.training.weight_decay = 5e-4
    config.training.unlabeled_ratio = 7
    weak = config.training.augmentation
    config.training.strong_augmentation = (*weak, "randaugment:2:10", "cutout:16")


# Settings for clients with one label: the other methods' stage 1, rate, batches and rounds on these data, so
# that only the loss differs. Weights were chosen by validation accuracy on seed 0, over the first five
# rounds after one stage 1, without test labels. Every setting tried began below the accuracy of stage 1;
# these lost least.


def _fedmatch_of_one_label(config: ConfigDict) -> None:
    """Tried: lambda_ICCS 0.01 and 0.1; with 20 clients a round, 0.1 at rate 0.03 and lambda_L2 0.1 at this.

    lambda_L2 = 0.1 pulls psi toward sigma as fast as in its paper at its rate, which doubles the parameters
    within the rounds of stage 2.
    """
    config.fedmatch = ConfigDict()
    config.fedmatch.supervised_weight = 1.0
    config.fedmatch.consistency_weight = 0.01
    config.fedmatch.l2_weight = 1e-3
    config.fedmatch.l1_weight = 1e-6
    config.fedmatch.helper_interval = 10
    config.training.strong_augmentation = ("translate:2", "cutout:8")


def _fedsiam_of_one_label(config: ConfigDict) -> None:
    """Tried: beta_max 10 at this rate and at 0.03, 100 at 0.03 (the last two with 20 clients a round)."""
    config.fedsiam.consistency_weight = 10.0
    config.fedsiam.average = 0.97
    config.training.augmentation = ("translate:2",)


def _fixmatch_of_one_label(config: ConfigDict) -> None:
    """Tried: weight 1, its paper's, at this rate and at 0.01; 0.1; 0.01, that of ProtoFSSL's baseline."""
    config.fixmatch = ConfigDict({"threshold": 0.95, "unlabeled_weight": 0.01})
    config.training.strong_augmentation = ("translate:2", "cutout:8")


def _method(
    config: ConfigDict, name: str, as_published: base.Variant, of_one_label: base.Variant
) -> None:
    """The method alone, with settings for its clients' number of labels."""
    _alone(config, name)
    (of_one_label if config.dataset.name == "fashion_mnist" else as_published)(config)


def _on_xclp_labels(config: ConfigDict, name: str) -> None:
    _alone(config, name)
    config[name].pseudo_label = "xclp"


def _authors(config: ConfigDict) -> None:
    config.xclp.similarity_power = 3.0  # and per-client LP's, which follows it
    config.xclp.label_matrix = "class_balanced"
    config.xclp.relative_confidence = True
    config.pseudo_label.class_weights = True
    config.pseudo_label.augmented_features = True
    config.pseudo_label.confidence = "logits"
    if config.model.name in ("cnn13", "resnet18"):
        config.model.normalize_features = config.algorithm != "fedsiam"
    if config.dataset.name == "mini_imagenet":
        config.training.augmentation = ("rotate:10", "crop:8", "flip")
    if config.algorithm not in ("fedmatch", "fixmatch"):  # they have rates of their own
        config.training.learning_rate = _authors_rate(config)


def _authors_rate(config: ConfigDict) -> float:
    """Learning rate by the number of labeled examples in a batch, for all data sets."""
    wanted = config.federation
    labels_a_client = wanted.num_labeled // (wanted.num_labeled_clients or wanted.num_clients)
    size = min(config.training.batch_size, labels_a_client)
    return 0.3 if size >= 50 else 0.1 if size >= 20 else 0.05


def _smoke(config: ConfigDict) -> None:
    config.num_repeats = 1
    config.rounds = 6
    config.evaluate_every = 2
    config.training.labeled_only_rounds = min(config.training.labeled_only_rounds, 2)


VARIANTS: dict[str, base.Variant] = {
    **{name: partial(column, cell=cell) for name, cell in CELLS.items()},
    "fashion_mnist": _fashion_mnist,
    "cifar10_features": _cifar10_features,
    "labeled_only": _labeled_only,
    "fully_supervised": _fully_supervised,
    "fedmatch": partial(
        _method, name="fedmatch", as_published=_fedmatch, of_one_label=_fedmatch_of_one_label
    ),
    "fedsiam": partial(
        _method, name="fedsiam", as_published=_fedsiam, of_one_label=_fedsiam_of_one_label
    ),
    "fixmatch": partial(
        _method, name="fixmatch", as_published=_fixmatch, of_one_label=_fixmatch_of_one_label
    ),
    "fedprox": partial(_on_xclp_labels, name="fedprox"),
    "scaffold": partial(_on_xclp_labels, name="scaffold"),
    "authors": _authors,
    "alphas": _alphas,
    "choosing": _choosing,
    "smoke": _smoke,
}

# At most one of each.
DATA = (*CELLS, "fashion_mnist", "cifar10_features")
METHODS = (
    *("labeled_only", "fully_supervised", "fedmatch", "fedsiam", "fixmatch", "fedprox"),
    *("scaffold", "alphas"),
)
