"""`federation.labels_at = "server"`: the draw of the server's labels, and incompatible settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from ml_collections import ConfigDict

from jaxfed import xclp
from jaxfed.config import methods
from jaxfed.data import Dataset
from jaxfed.data.partitioning.strata import chosen_of_each, stratified
from jaxfed.errors import UsageError
from jaxfed.training.pseudo_labels.propagated_labels import is_one_program

LABELS_AT = ("clients", "server")

_SERVER = 0x73727672  # random stream of the server's draw, separate from that of the partition


def drawn_for_server(wanted: ConfigDict, data: Dataset, train: np.ndarray, seed: int) -> np.ndarray:
    """Draw the server's examples from `train`: int64, ascending; empty if labels are at clients.

    They are `labeled_per_class` of each class, else `num_labeled` or `labeled_fraction` in total, stratified.

    Raises:
        UsageError: more labels are requested than exist, or none.
    """
    if wanted.labels_at == "clients":
        return train[:0]
    known = train[data.is_labeled[train]]
    y, rng = data.y[known], np.random.default_rng((seed, _SERVER))
    if wanted.labeled_per_class:
        fewest = int(np.bincount(y, minlength=data.num_classes).min())
        if wanted.labeled_per_class > fewest:
            raise UsageError(
                f"config.federation.labeled_per_class={wanted.labeled_per_class}: the server can have at "
                f"most {fewest}, which is all that {data.name} has to train on of one class"
            )
        of_each = np.full(data.num_classes, wanted.labeled_per_class)
        return np.sort(known[chosen_of_each(y, of_each, rng)])
    number = wanted.num_labeled or round(wanted.labeled_fraction * len(known))
    if not number:
        raise UsageError(
            f"config.federation.labeled_fraction={wanted.labeled_fraction}: the server has no label of "
            f"{len(known)} with labels_at='server'; one is needed at least"
        )
    if number > len(known):
        raise UsageError(
            f"config.federation.num_labeled={number}: the server can have at most {len(known)}, which is all "
            f"that {data.name} has to train on"
        )
    return np.sort(known[stratified(y, number, rng)])


# In one run, all labels are either at clients or at the server. Most methods can learn from both.
_ONE_TABLE = (
    "; methods for both stand in one table with 'server' "
    "(ml_collections_configs/labels_at_server.py has them), others in two runs that "
    "`launch.report RUN RUN` puts on one page"
)


@contextmanager
def naming_labels_at(name: str) -> Iterator[None]:
    """Rewrite a method's errors about `labels_at` to the config's key and the method's name."""
    try:
        yield
    except UsageError as error:
        message = str(error)
        if message.startswith("labels_at="):
            elsewhere = _ONE_TABLE if "learns from labels" in message else ""
            message = f"config.federation.{message.replace('this method', repr(name))}{elsewhere}"
        raise UsageError(message) from error


def check_labels_at(config: ConfigDict) -> None:
    """Check settings that are incompatible with labels at the server.

    Methods that train a model check themselves.

    Raises:
        UsageError: names the first incompatible key.
    """
    federation = config.federation
    if federation.labels_at == "clients":
        return
    for key, allowed in (
        ("num_labeled_clients", 0),
        ("reveal_labels", False),
        ("left_out_client", -1),
        ("graph", "labeled+unlabeled"),
    ):
        if federation[key] != allowed:
            raise UsageError(
                f"config.federation.{key}={federation[key]!r}: allowed is {allowed!r} with "
                "labels_at='server', where clients have no labels"
            )
    for name in methods.chosen(config):
        if not methods.trains(config, name):
            raise UsageError(
                f"config.federation.labels_at='server': {name!r} labels in one shot by labels that clients "
                "have; allowed are methods that train a model"
            )
        if methods.has_learners(config, name):
            raise UsageError(
                f"config.federation.labels_at='server': clients of {name!r} learn from labels of their own; "
                "allowed is 'clients'"
            )
        takes_xclp = methods.all_keywords(config, name).get("pseudo_label") == "xclp"
        if takes_xclp and not is_one_program(xclp.Parameters(num_classes=2, **config.xclp)):
            raise UsageError(
                "config.federation.labels_at='server': the server is a party of XCLP then; allowed are no "
                "noise, and hamming='plaintext', row_sums='plaintext', influence='labels' in config.xclp"
            )
