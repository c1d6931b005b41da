"""Settings of the data: data set, preprocessing, and partition among clients."""

from __future__ import annotations

from typing import Any, get_args

from jaxfed.config.data.partitioning import FIELDS, schemes_with
from jaxfed.config.data.preprocessing import KINDS
from jaxfed.config.data.simulation import GRAPHS, TESTS
from jaxfed.config.schema.docstrings import meanings
from jaxfed.config.schema.setting import BELOW_ONE, SWITCH, TEXT, Setting, are_texts, in_section
from jaxfed.config.server_labels import LABELS_AT
from jaxfed.data import SCHEMES
from jaxfed.data.partitioning.distribution import Skew
from jaxfed.rules import Rule, at_least, between, one_of, rules_of_fields


def _of_field(key: str, *, default: Any = None, zero: str = "") -> Setting:
    """Return the setting of a key of `federation` that is a field of a partition's dataclass.

    Args:
        key: of `jaxfed.config.data.partitioning.FIELDS`.
        default: of configs; None is the field's own.
        zero: meaning of 0, the default of a number that the dataclass need not have.
    """
    owner, name = FIELDS[key]
    meaning = meanings(owner)[name].rstrip(".")
    if schemes := schemes_with(key):
        meaning = f"with partition={' or '.join(map(repr, schemes))}: {meaning}"
    if zero:
        return Setting(0, at_least(0, f", 0 {zero}"), meaning)
    return Setting(
        getattr(owner, name) if default is None else default, rules_of_fields(owner)[name], meaning
    )


DATASET = in_section(
    "dataset",
    {
        "name": Setting(
            "",
            Rule(str, "the name or path of a data set", bool),
            "name of a data set, or path of an .npz, CSV or Parquet file, or of a folder of images or tables",
        ),
        "root": Setting("", TEXT, "folder of the data sets; '': $JAXFED_DATA, else TFDS's default"),
        "label_key": Setting(
            "", TEXT, "TFDS feature or table's column that holds the label; '': the usual one"
        ),
        "client_key": Setting(
            "",
            TEXT,
            "table's column or .npz array with the client of each row; 'file': each file of a pattern is a "
            "client; '': the usual one",
        ),
        "drop": Setting(
            (),
            Rule(tuple, "names of columns, or () for none", are_texts),
            "a table's columns that are not features",
        ),
        "image_size": Setting(
            0, at_least(0, ", 0 is their own size"), "pixels a side of images in a folder or table"
        ),
        "train_size": Setting(
            0, at_least(0, ", 0 is all"), "training examples taken, stratified by class"
        ),
        "test_size": Setting(0, at_least(0, ", 0 is all"), "test examples taken"),
        "unlabeled_size": Setting(
            0,
            at_least(0, ", 0 counts them in train_size"),
            "examples without a label, beside train_size",
        ),
        "balanced": Setting(False, SWITCH, "take the same number of examples of each class"),
        "pooled": Setting(
            False, SWITCH, "pool the set's training and test split, and draw a new test split"
        ),
        "test_fraction": Setting(
            0.2,
            between(0, 1, closed=False),
            "share for testing of a set without a test split",
        ),
        "test_rows": Setting(
            "by_repeat",
            one_of(("by_repeat", "shared")),
            "test rows of a set without a test split: 'by_repeat': each repeat draws its own, 'shared': all "
            "repeats have the same",
        ),
        "validation_fraction": Setting(
            0.0,
            BELOW_ONE,
            "share of the training examples for validation, which selects models; drawn in every repeat, "
            "unless the data set has validation examples",
        ),
        "validation_measure": Setting(
            "accuracy",
            one_of(("accuracy", "balanced_accuracy", "auroc")),
            "measure on validation examples that selects models; 'auroc': the area under the ROC curve",
        ),
    },
)
PREPROCESS = in_section(
    "preprocessing",
    {
        "kind": Setting("identity", one_of(KINDS), "preprocessing of all examples"),
        "rounds": Setting(
            0,
            at_least(0, ", 0 keeps training.initial_model as it is"),
            "FedAvg rounds of kind='federated_features'",
        ),
        "cohort_size": Setting(
            0, at_least(0, ", 0 is all clients"), "clients in each of these rounds"
        ),
        "network": Setting("efficientnet_lite0", TEXT, "network of kind='pretrained'"),
        "weights": Setting("", TEXT, "its weights; '': NETWORK.safetensors in the data folder"),
        "image_size": Setting(
            0, at_least(0, ", 0 is what the network was trained on"), "pixels a side of its input"
        ),
        "batch_size": Setting(0, at_least(0, ", 0 is by device"), "images in a batch of it"),
        "components": Setting(
            0,
            at_least(0, ", 0 keeps all features"),
            "principal components of the training images' features that are kept, for kind='pretrained'",
        ),
        "views": Setting(
            0,
            at_least(0, ", 0 augments nothing"),
            "weak, and as many strong, views of each image whose features are computed before training",
        ),
    },
)
FEDERATION = in_section(
    "federation",
    {
        "num_clients": Setting(
            10,
            at_least(0, ", 0 (with 'natural') is one a client id"),
            "number of clients",
        ),
        "partition": Setting(
            "iid", one_of(SCHEMES), "scheme by which examples are distributed to clients"
        ),
        "dirichlet_alpha": _of_field("dirichlet_alpha"),
        "dirichlet_alpha_rest": _of_field("dirichlet_alpha_rest"),
        "dirichlet_share": _of_field("dirichlet_share"),
        "classes_per_client": _of_field("classes_per_client"),
        "table": _of_field("table"),
        "quantity": _of_field("quantity"),
        "quantity_parameter": _of_field("quantity_parameter"),
        "min_size": _of_field("min_size"),
        "labeled_fraction": _of_field("labeled_fraction", default=0.1),
        "num_labeled": _of_field("num_labeled", zero="leaves it to labeled_fraction"),
        "labeled_per_class": _of_field("labeled_per_class", zero="leaves it to labeled_fraction"),
        "num_labeled_clients": _of_field("num_labeled_clients", zero="is all"),
        "skew": Setting(
            "both",
            one_of(get_args(Skew)),
            "examples that follow the scheme; the others are distributed at random; 'independent': "
            "labeled and unlabeled examples follow two draws of it",
        ),
        "labels_at": Setting(
            "clients",
            one_of(LABELS_AT),
            "holder of the labels; 'server': all of them, drawn before the rest is distributed",
        ),
        "public_size": Setting(
            0,
            at_least(0, ", 0 is none, or all of public_dataset"),
            "unlabeled examples that everybody has",
        ),
        "public_fraction": Setting(
            0.0, BELOW_ONE, "the same as a share of the training examples, where public_size is 0"
        ),
        "public_dataset": Setting(
            "", TEXT, "data set of the public examples; '': the clients' own"
        ),
        "own_size": Setting(
            0,
            at_least(0, ", 0 is all that are not public"),
            "training examples distributed to clients",
        ),
        "public_labeled": Setting(
            False, SWITCH, "public examples keep their labels, which everybody has (FedMD)"
        ),
        "reveal_labels": Setting(
            False, SWITCH, "reveal all labels once examples are distributed: full supervision"
        ),
        "test": Setting(
            "clients",
            one_of(TESTS),
            "holder of the test examples: clients (as new points) or nobody (central)",
        ),
        "graph": Setting(
            "labeled+unlabeled", one_of(GRAPHS), "training points in XCLP's graph (its Table 3)"
        ),
        "left_out_client": Setting(
            -1,
            at_least(-1, ", -1 is none"),
            "client that gives no labels and whose points are new (XCLP, Table 2)",
        ),
    },
)
