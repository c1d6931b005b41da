"""Settings of the data: data set, preprocessing, and partition among clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_args

from jaxfed.config.preprocessing import PREPROCESSING
from jaxfed.config.schema.setting import BELOW_ONE, SWITCH, TEXT, Setting, are_texts, in_section
from jaxfed.config.schema.training import are_numbers
from jaxfed.config.server_labels import LABELS_AT
from jaxfed.config.simulation import GRAPHS, TESTS
from jaxfed.data.partitioning.arguments import Skew
from jaxfed.data.partitioning.schemes import Assignment, Quantity, Scheme
from jaxfed.rules import POSITIVE, SHARE, Rule, at_least, between, one_of


def _is_table(rows: Collection[Any]) -> bool:
    if not all(isinstance(row, tuple | list) and are_numbers(row) for row in rows):
        return False
    return len(set(map(len, rows))) <= 1 and all(min(row) >= 0 < sum(row) for row in rows if row)


DATASET = in_section(
    "dataset",
    {
        "name": Setting(
            "",
            Rule(str, "the name or path of a data set", bool),
            "name of a data set, or path of an .npz or CSV file or an image folder",
        ),
        "root": Setting("", TEXT, "folder of the data sets; '': $JAXFED_DATA, else TFDS's default"),
        "label_key": Setting(
            "", TEXT, "TFDS feature or CSV column that holds the label; '': the usual one"
        ),
        "client_key": Setting(
            "",
            TEXT,
            "CSV column or .npz array that says whose each row is; '': the usual one",
        ),
        "drop": Setting(
            (),
            Rule(tuple, "names of columns, or () for none", are_texts),
            "CSV columns that are not features",
        ),
        "missing": Setting(
            "impute",
            one_of(("impute", "refuse")),
            "missing cells of a CSV file: the training rows' median and an indicator, or an error",
        ),
        "image_size": Setting(
            0,
            at_least(0, ", 0 is their own size"),
            "pixels a side of an image folder; 0: as they are",
        ),
        "image_bits": Setting(
            8,
            Rule(int, "integers from 8 to 16", lambda bits: 8 <= bits <= 16),
            "bits in use of images deeper than 8 bits (12, for example); 8 refuses such images",
        ),
        "train_size": Setting(
            0, at_least(0, ", 0 is all"), "training examples taken, stratified by class; 0: all"
        ),
        "test_size": Setting(0, at_least(0, ", 0 is all"), "test examples taken; 0: all"),
        "unlabeled_size": Setting(
            0,
            at_least(0, ", 0 counts them in train_size"),
            "examples without a label, beside train_size; 0: counted in train_size",
        ),
        "balanced": Setting(False, SWITCH, "take as many examples of each class"),
        "pooled": Setting(
            False, SWITCH, "pool the set's own training and test split, then split anew"
        ),
        "test_fraction": Setting(
            0.2,
            between(0, 1, closed=False),
            "share for testing of a set without a test split; the same examples in every repeat",
        ),
        "validation_fraction": Setting(
            0.0, BELOW_ONE, "share of the rest that selects trained models; drawn in every repeat"
        ),
    },
)
PREPROCESS = in_section(
    "preprocessing",
    {
        "kind": Setting(
            "identity", one_of(PREPROCESSING), "what methods get in place of raw examples"
        ),
        "rounds": Setting(
            0,
            at_least(0, ", 0 keeps training.initial_model as it is"),
            "FedAvg rounds of kind='federated_features'; 0: the initial model as it is",
        ),
        "cohort_size": Setting(
            0, at_least(0, ", 0 is all clients"), "clients in each of these rounds; 0: all"
        ),
        "network": Setting("efficientnet_lite0", TEXT, "network of kind='pretrained'"),
        "weights": Setting("", TEXT, "its weights; '': NETWORK.safetensors in the data folder"),
        "image_size": Setting(
            0,
            at_least(0, ", 0 is what the network was trained on"),
            "pixels a side of its input; 0: what the network was trained on",
        ),
        "batch_size": Setting(
            0, at_least(0, ", 0 is what the device likes"), "images in a batch of it; 0: by device"
        ),
    },
)
FEDERATION = in_section(
    "federation",
    {
        "num_clients": Setting(
            10,
            at_least(0, ", 0 (with 'natural') is one a client id"),
            "number of clients; 0, with partition='natural': one for each client id",
        ),
        "partition": Setting("iid", one_of(get_args(Scheme)), "how examples are dealt to clients"),
        "dirichlet_alpha": Setting(
            0.5, POSITIVE, "concentration of partition='dirichlet'; small values: clients unlike"
        ),
        "dirichlet_alpha_rest": Setting(
            100.0, POSITIVE, "concentration for the examples outside dirichlet_share"
        ),
        "dirichlet_share": Setting(
            0.9,
            SHARE,
            "share of examples dealt by dirichlet_alpha in partition='dirichlet_mixture'",
        ),
        "classes_per_client": Setting(
            2, at_least(1), "classes of a client in its partition scheme"
        ),
        "assignment": Setting(
            "random", one_of(get_args(Assignment)), "which classes or table rows clients get"
        ),
        "table": Setting(
            (),
            Rule(
                tuple,
                "equally long rows of class shares from 0 on, some above 0 in each; () is FedMatch's",
                _is_table,
            ),
            "rows of class shares for partition='table'; (): FedMatch's",
        ),
        "quantity": Setting(
            "default", one_of(["default", *get_args(Quantity)]), "how many examples clients get"
        ),
        "quantity_parameter": Setting(1.0, POSITIVE, "parameter of that distribution"),
        "min_size": Setting(0, at_least(0), "least number of examples of a client"),
        "labeled_fraction": Setting(0.1, SHARE, "share of examples that keep their label"),
        "num_labeled": Setting(
            0,
            at_least(0, ", 0 leaves it to labeled_fraction"),
            "labeled examples in all, in place of the share; 0: by the share",
        ),
        "labeled_per_class": Setting(
            0,
            at_least(0, ", 0 leaves it to labeled_fraction"),
            "labeled examples of each class at each labeled client, in place of the share",
        ),
        "num_labeled_clients": Setting(0, at_least(0, ", 0 is all"), "clients with labels; 0: all"),
        "skew": Setting(
            "both",
            one_of(get_args(Skew)),
            "which examples follow the scheme; others are dealt at random",
        ),
        "labels_at": Setting(
            "clients",
            one_of(LABELS_AT),
            "who holds the labels; 'server': all of them, drawn before the rest is dealt",
        ),
        "public_size": Setting(
            0,
            at_least(0, ", 0 is none, or all of public_dataset"),
            "unlabeled examples that everybody has; 0: none, or all of public_dataset",
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
            "training examples dealt to clients; 0: all that are not public",
        ),
        "public_labeled": Setting(
            False, SWITCH, "public examples keep their labels, which everybody has (FedMD)"
        ),
        "reveal_labels": Setting(
            False, SWITCH, "reveal all labels once examples are dealt: full supervision"
        ),
        "test": Setting(
            "clients", one_of(TESTS), "whose test examples are: clients' new points, or central"
        ),
        "graph": Setting(
            "labeled+unlabeled", one_of(GRAPHS), "training points in XCLP's graph (its Table 3)"
        ),
        "left_out_client": Setting(
            -1,
            at_least(-1, ", -1 is none"),
            "client that gives no labels and whose points are new (XCLP, Table 2); -1: none",
        ),
    },
)
