"""The keys that every config shares, their defaults, and the variants that every config accepts.

A config file starts from `get_config()`, sets what is its own, and ends with `apply_variants`. What
a key may hold: `jaxfed/config/check.py`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.errors import UsageError, suggestion

Variant = Callable[[ConfigDict], None]
Add = Callable[..., None]

# Sizes, which a config file gives for its own data set. With another `--config.dataset.name` those that are
# not given beside it have these values instead: all examples, and of them the shares `dataset.test_fraction`,
# `federation.labeled_fraction` and, where the file has public examples, this `federation.public_fraction`.
# The paper's table belongs to the set, too.
PUBLIC_FRACTION = 0.5
SIZES_OF_A_SET: dict[str, Any] = {
    "dataset.train_size": 0,
    "dataset.test_size": 0,
    "dataset.unlabeled_size": 0,
    "dataset.balanced": False,
    "federation.num_labeled": 0,
    "federation.public_size": 0,
    "federation.own_size": 0,
    "audit.members": 0,
    "audit.population": 200,
    "paper_table": "",
}

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # the paper's is 0.99


def get_config() -> ConfigDict:
    """XCLP and its Section 4.1 baselines on no data set yet."""
    config = ConfigDict()
    config.seed = 0
    config.num_repeats = 5  # seeds: seed, seed + 1, ...
    config.algorithm = "xclp"
    config.baselines = ("per_client_lp", "pooled_lp", "client_knn")  # on the same clients
    config.rounds = 1  # of a method that labels in one shot one, where a round has all clients
    config.cohort_size = 0  # clients a round; 0 = all
    config.sampling = "uniform"  # of clients; "proportional" to labeled and unlabeled; "groups"
    # With "proportional": tau m_L clients with labels, rounded up as in XCLP's code, or to the "nearest";
    # all of a cohort have labels where others would be idle (stage 1, per-client LP), as there
    config.labeled_share = "ceiling"
    config.labeled_cohorts = True
    config.evaluate_every = 0  # rounds; 0 = after the last one
    config.evaluate_test = (
        False  # look at the test set then, too: for curves, nothing is selected by it
    )
    config.checkpoint_every = 0  # rounds; 0 = by the clock, waiting 3 % of the time at most
    config.paper_table = ""  # the paper's table to print beside the results, such as "xclp/1"

    config.dataset = ConfigDict()
    config.dataset.name = ""
    config.dataset.root = ""  # "" = $JAXFED_DATA, else the TFDS default
    config.dataset.label_key = ""  # a TFDS set's feature, a CSV column; "" = the usual one
    config.dataset.client_key = (
        ""  # a CSV column, an .npz array: whose each row is; "" = the usual one
    )
    config.dataset.drop = ()  # CSV columns that are no features
    config.dataset.missing = "impute"  # missing cells of a CSV file: medians, or "refuse" them
    config.dataset.image_size = 0  # of image folders, pixels a side; 0 = the images' own
    config.dataset.image_bits = (
        8  # of 16 that are in use in deeper images, 12, say; 8 refuses these
    )
    config.dataset.train_size = 0  # examples taken, stratified, chosen by seed; 0 = all
    config.dataset.test_size = 0
    config.dataset.unlabeled_size = (
        0  # of examples without a label: apart from train_size; 0 = in it
    )
    config.dataset.balanced = False  # as many examples of each class, not the same share
    config.dataset.pooled = False  # its own test split is undone: it is as a set without one
    # Test split of a set without one, the same in every repeat: test_size or, where that is 0, this share.
    config.dataset.test_fraction = 0.2
    # Of the rest, to select trained models by: each repeat's own.
    config.dataset.validation_fraction = 0.0

    config.preprocessing = ConfigDict()
    config.preprocessing.kind = "identity"
    config.preprocessing.rounds = 0  # with kind = "federated_features"
    config.preprocessing.cohort_size = 0  # clients a round then; 0 = all
    config.preprocessing.network = "efficientnet_lite0"  # with kind = "pretrained"
    config.preprocessing.weights = ""  # "" = NETWORK.safetensors in the data root
    config.preprocessing.image_size = 0  # pixels a side; 0 = what the network was trained on
    config.preprocessing.batch_size = 0  # 0 = what the device likes

    config.federation = ConfigDict()
    config.federation.num_clients = 10
    config.federation.partition = "iid"
    config.federation.dirichlet_alpha = 0.5  # with partition = "dirichlet", "dirichlet_mixture"
    config.federation.dirichlet_alpha_rest = 100.0  # of the mixture, for what is not in the share:
    config.federation.dirichlet_share = 0.9
    config.federation.classes_per_client = 2  # with partition = "classes_per_client"
    config.federation.assignment = "random"  # of classes to clients
    config.federation.table = ()  # with partition = "table"; () = FedMatch's
    config.federation.quantity = "default"
    config.federation.quantity_parameter = 1.0
    config.federation.min_size = 0
    config.federation.labeled_fraction = 0.1
    config.federation.num_labeled = 0  # in all, instead of the fraction
    config.federation.labeled_per_class = 0  # per labeled client, instead of the fraction
    config.federation.num_labeled_clients = 0  # 0 = all
    config.federation.skew = "both"  # which part follows the scheme: labeled, unlabeled or both
    # "server": all labels are the server's, drawn before the rest is dealt; clients have none.
    config.federation.labels_at = "clients"
    config.federation.public_size = 0  # examples that everybody has, without labels; 0 = none
    config.federation.public_fraction = 0.0  # of the training examples, where public_size is 0
    config.federation.public_dataset = ""  # of this set in place of the clients'; a size of 0 = all
    config.federation.public_labeled = False  # with labels, which everybody has, too (FedMD)
    config.federation.own_size = 0  # training examples of all clients; 0 = all that are not public
    config.federation.reveal_labels = False  # all of them, once dealt: full supervision
    config.federation.test = "clients"  # test examples are clients' new points, or "central"
    config.federation.graph = "labeled+unlabeled"  # training points in the graph (XCLP, Table 3)
    config.federation.left_out_client = -1  # contributes no labels; its points are new (Table 2)

    config.xclp = ConfigDict()
    config.xclp.num_bits = 4096
    config.xclp.num_neighbors = 10
    config.xclp.self_edges = False  # line 7 as printed: a point is one of its own k
    config.xclp.alpha = 0.99
    config.xclp.projection = "seed"  # where Pi comes from; "group_secret" of the clients' session
    config.xclp.hamming = "plaintext"
    config.xclp.neighbors = "exact"  # or "approximate", for very many points; with plaintext
    config.xclp.key_bits = 2048  # of Paillier's keys, with hamming = "phe" or "phe_paper"
    config.xclp.row_sums = "plaintext"
    config.xclp.influence = "labels"
    config.xclp.similarity_power = 1.0
    config.xclp.label_matrix = "plain"  # what is propagated; "class_balanced" in the authors' code
    config.xclp.client_prior = 0.0  # of a client's own label frequencies; 0 = none
    config.xclp.select = ()  # by leave-one-out: "alpha", "label_matrix", "alpha:0.5:0.9", ...
    config.xclp.select_measure = "accuracy"  # of labels that come back; or "balanced_accuracy"
    config.xclp.confidence = "entropy"  # line 16; "calibrated" by leave-one-out
    config.xclp.relative_confidence = False
    config.xclp.tolerance = 1e-6
    config.xclp.max_steps = 1000
    config.xclp.bit_epsilon = 0.0  # randomized response on bits; 0 = none
    config.xclp.label_epsilon = 0.0  # on labels; 0 = none
    config.xclp.presence = ()  # who leaves: "3@hamming", "20%@row_sums", ...; with protocols

    # Baselines follow XCLP's settings, unless they are given their own.
    for name in ("per_client_lp", "pooled_lp"):
        config[name] = ConfigDict()
        for key in (
            *("num_neighbors", "self_edges", "alpha", "similarity_power"),
            *("label_matrix", "client_prior", "select", "select_measure"),
            *("confidence", "relative_confidence", "tolerance", "max_steps"),
        ):
            config[name][key] = config.xclp.get_oneway_ref(key)
    config.client_knn = ConfigDict()
    config.client_knn.num_neighbors = 5

    config.selection = ConfigDict()  # of the settings of methods that label in one shot
    config.selection.settings = "given"  # or "cross_validated" over the labeled points
    config.selection.folds = 5
    config.selection.measure = "accuracy"  # of the hidden labels; or "balanced_accuracy"
    # Beside the given value; () = it alone. What a method's `select` names leave-one-out chooses instead.
    candidates = config.selection.candidates = ConfigDict()
    candidates.xclp = ConfigDict({"num_bits": (), "num_neighbors": (), "alpha": ALPHAS})
    for name in ("per_client_lp", "pooled_lp"):
        candidates[name] = ConfigDict({"num_neighbors": (), "alpha": ALPHAS})
    candidates.client_knn = ConfigDict({"num_neighbors": (1, 3, 5, 10, 20)})

    config.model = ConfigDict()  # the name, and the options of that network
    config.model.name = "mlp"

    config.training = ConfigDict()  # what all methods that train a model share
    config.training.optimizer = "sgd"
    config.training.client_optimizer = "fresh"  # in every round; its state "kept" by each client
    config.training.learning_rate = 0.1
    config.training.schedule = "constant"  # over rounds
    config.training.schedule_rounds = 0  # until a cosine has fallen to 0; 0 = rounds
    config.training.momentum = 0.0
    config.training.nesterov = False
    config.training.weight_decay = 0.0
    config.training.epochs = 5  # local
    config.training.local_steps = 0  # a round, in place of whole epochs; 0 = the epochs
    config.training.batches = "paired"  # labeled with pseudo-labeled examples, or "joint"
    config.training.batch_size = 50  # at most, 0 = all; of labeled examples with "paired"
    config.training.unlabeled_ratio = 1  # unlabeled examples beside each labeled one of a batch
    config.training.loss = "cross_entropy"
    config.training.class_weights = ()  # of the loss, one number a class; () = all alike
    config.training.augmentation = ()
    config.training.strong_augmentation = ()  # of methods that compare two views of an example
    # Of clients in the server's mean; "uniform" leaves out those with nothing to train on, "cohort" does not
    config.training.weighting = "uniform"
    config.training.server_optimizer = "sgd"
    config.training.server_learning_rate = 1.0
    config.training.server_momentum = 0.0  # with "sgd": FedAvgM
    config.training.server_beta1 = 0.9  # of the adaptive ones, "adagrad", "yogi", "adam"
    config.training.server_beta2 = 0.99
    config.training.server_tau = 1e-3
    config.training.server_epochs = 5  # on its own labels, with federation.labels_at = "server"
    config.training.server_batch_size = 50  # at most; 0 = all of them
    config.training.batch_statistics = "averaged"
    config.training.labeled_only_rounds = 0  # of stage 1
    # WORKDIR/states/METHOD-{repeat} of an earlier experiment (its selected state), or
    # METHOD-{repeat}-last (its last), or "pretrained" on ImageNet
    config.training.initial_model = ""

    # What clients train in methods that have them teach labels; config.learner.NAME has a learner's own keys
    config.learner = ConfigDict()
    config.learner.name = "network"
    config.learner.names = ()  # with name = "mixed", cycled over the clients

    config.pseudo_label = ConfigDict()  # switches for what the authors' code does
    config.pseudo_label.confidence = "softmax"  # of the network's labels; "logits" in the code
    # Of XCLP's labels by the cohort, of per-client LP's by the client.
    config.pseudo_label.class_weights = False
    config.pseudo_label.augmented_features = False
    # "network": inferred labels stay where they are right more often than it is on validation examples.
    config.pseudo_label.safeguard = "none"

    config.audit = ConfigDict()  # of `launch.audit`, which infers membership from what methods send
    config.audit.rounds = ()  # in which messages are looked at; () = the last
    config.audit.members = 0  # labeled examples of a client that are asked about; 0 = all
    config.audit.population = 200  # held-out examples that the attacker knows to be no members
    config.audit.shadows = 64  # models that the attacker trains; 0 = none

    # What changes speed and memory; results change by rounding at most, but for `precision`.
    config.execution = ConfigDict()
    config.execution.strategy = (
        "auto"  # of clients; "shard_map": over all devices, XCLP's graph too
    )
    config.execution.chunk_size = 0  # clients at a time in a loop over them
    config.execution.convolution = "auto"
    config.execution.precision = "float32"  # that networks compute in, or "bfloat16"
    config.execution.workers = 0  # processes that hamming = "phe" computes in; 0 = none
    config.execution.memory_limit = None  # bytes, or text such as "4 GiB"; None: the device's
    config.execution.compilation_cache = "auto"  # "auto", "off" or a directory
    config.execution.plots = True  # at the end; `launch.report` draws without them, too
    return config


def smoke(config: ConfigDict) -> None:
    """Small enough for a look: under a minute on two cores."""
    config.num_repeats = 2
    config.rounds = min(config.rounds, 2)


def tuned(config: ConfigDict) -> None:
    """Every method that labels in one shot at settings of its own, chosen without test labels."""
    config.selection.settings = "cross_validated"


def auto(config: ConfigDict) -> None:
    """XCLP and label propagation with what leave-one-out chooses; given is what holds with few labels."""
    config.xclp.label_matrix = "class_balanced"
    config.xclp.alpha = 0.95
    config.xclp.select = ("alpha", "label_matrix:plain:class_balanced", "client_prior")


def beside_auto(config: ConfigDict, names: Collection[str]) -> None:
    """A second row `NAME_auto` for each of these methods, with the settings of `auto`."""
    chosen = ConfigDict({"xclp": {}})
    auto(chosen)
    for name in names:
        config[f"{name}_auto"] = ConfigDict({"algorithm": name, **chosen.xclp})


def beside_tuned(add: Add, variant: str) -> Add:
    """`add`; with the variant `tuned` one that adds every point twice, with given settings first."""
    if "tuned" not in variant.split(","):
        return add

    def add_both(**point: Any) -> None:
        for settings in ("given", "cross_validated"):
            add(**point, **{"selection.settings": settings})

    return add_both


def apply_variants(
    config: ConfigDict,
    variant: str,
    own: Mapping[str, Variant] | None = None,
    exclusive: Collection[Collection[str]] = (),
) -> ConfigDict:
    """Apply a comma-separated list of variants to the config, in the order in which the file has them.

    Which of them a user names first has no say: what a later one builds on, or makes smaller, is there.

    Args:
        config: changed in place.
        variant: names out of `own` and the shared `tuned`, `auto` and `smoke`; '' for none.
        own: the file's variants; one of them may replace a shared one, which otherwise come last.
        exclusive: groups of variants of which one only can be meant.

    Raises:
        UsageError: there is no such variant, or two exclude each other.
    """
    variants: dict[str, Variant] = {**(own or {})}
    for name, shared in (("tuned", tuned), ("auto", auto), ("smoke", smoke)):
        variants.setdefault(name, shared)
    names = [name for name in variant.split(",") if name]
    for name in names:
        if name not in variants:
            raise UsageError(
                f"--config=...:{variant}: no variant {name!r}{suggestion(name, variants)}"
            )
    for group in (*exclusive, ("tuned", "auto")):
        rivals = [name for name in dict.fromkeys(names) if name in group]
        if len(rivals) > 1:
            raise UsageError(
                f"--config=...:{variant}: the variants {' and '.join(rivals)} exclude each other"
            )
    for name, change in variants.items():
        if name in names:
            change(config)
    return config
