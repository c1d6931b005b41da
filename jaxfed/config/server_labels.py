"""`federation.labels_at = "server"`: the draw of the server's labels, and incompatible settings."""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict

from jaxfed import xclp
from jaxfed.config import methods
from jaxfed.data import Dataset
from jaxfed.data.partitioning.stratified import chosen_of_each, stratified
from jaxfed.errors import UsageError
from jaxfed.federation.method import Method
from jaxfed.random_streams import Stream
from jaxfed.training.pseudo_labels.label_sources import BY_OWN_LABELS
from jaxfed.training.pseudo_labels.propagated_labels import is_one_program


def drawn_for_server(wanted: ConfigDict, data: Dataset, train: np.ndarray, seed: int) -> np.ndarray:
    """Draw the server's examples from `train`: int64, ascending; empty if labels are at clients.

    They are `labeled_per_class` of each class, else `num_labeled` or `labeled_fraction` in total, stratified.

    Raises:
        UsageError: more labels are requested than exist, or none.
    """
    if wanted.labels_at == "clients":
        return train[:0]
    known = train[data.is_labeled[train]]
    y, rng = data.y[known], np.random.default_rng((seed, Stream.SERVER_EXAMPLES))
    if wanted.labeled_per_class:
        fewest = int(np.bincount(y, minlength=data.num_classes).min())
        if wanted.labeled_per_class > fewest:
            raise UsageError(
                f"the server can have at most {fewest}, all that {data.name} has to train on of one class",
                key="config.federation.labeled_per_class",
                value=wanted.labeled_per_class,
            )
        of_each = np.full(data.num_classes, wanted.labeled_per_class)
        return np.sort(known[chosen_of_each(y, of_each, rng)])
    number = wanted.num_labeled or round(wanted.labeled_fraction * len(known))
    if not number:
        raise UsageError(
            f"with labels_at='server' the server has no label of {len(known)}; one is needed at least",
            key="config.federation.labeled_fraction",
            value=wanted.labeled_fraction,
        )
    if number > len(known):
        raise UsageError(
            f"the server can have at most {len(known)}, all that {data.name} has to train on",
            key="config.federation.num_labeled",
            value=number,
        )
    return np.sort(known[stratified(y, number, rng)])


# In one run, all labels are either at clients or at the server. Most methods can learn from both.
_ONE_TABLE = (
    "methods for both stand in one table with 'server' "
    "(ml_collections_configs/labels_at_server.py has them), others in two runs that "
    "`launch.report RUN RUN` puts on one page"
)


def check_labels_at(config: ConfigDict) -> None:
    """Check that the methods of the run are for labels at the server, if they are there.

    Raises:
        UsageError: names the first incompatible key.
    """
    if config.federation.labels_at == "clients":
        return
    for name in methods.chosen(config):
        if methods.labels_in_one_shot(config, name):
            raise _refused(config, f"{name!r} labels in one shot by labels that clients have")
        if methods.has_learners(config, name):
            raise _refused(config, f"clients of {name!r} learn from labels of their own")


def check_place_of_labels(
    config: ConfigDict, name: str, needed: Method, parameters: xclp.Parameters
) -> None:
    """Check that a method that trains one model can use labels where they are.

    Raises:
        UsageError: its needs, or the parameters of XCLP's labels, do not allow it.
    """
    if config.federation.labels_at not in needed.labels_at:
        (place,) = needed.labels_at
        wrong = f"{name!r} needs labels at the {place}"
        raise _refused(config, wrong, f"use {place!r}; {_ONE_TABLE}")
    if config.federation.labels_at == "clients":
        return
    if needed.pseudo_label in BY_OWN_LABELS:
        raise _refused(config, f"{name!r} labels by what each client makes of its own labels")
    is_for_it = is_one_program(parameters) and not parameters.compared_clients
    if needed.pseudo_label == "xclp" and not is_for_it:
        raise _refused(
            config,
            "the server then takes part in XCLP, whose noise, protocols and choices are for clients",
            "set no noise, hamming='plaintext', row_sums='plaintext', influence='labels', "
            "compared_clients=0, select=(), client_prior=0 and confidence='entropy' in config.xclp",
        )


def _refused(config: ConfigDict, wrong: str, allowed: str = "use 'clients'") -> UsageError:
    place = config.federation.labels_at
    return UsageError(wrong, key="config.federation.labels_at", value=place, allowed=allowed)
