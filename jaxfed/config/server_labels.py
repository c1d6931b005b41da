"""`federation.labels_at = "server"`: methods and settings that do not go with it."""

from __future__ import annotations

from ml_collections import ConfigDict

from jaxfed import xclp
from jaxfed.config import methods
from jaxfed.errors import UsageError
from jaxfed.federation.method import Method
from jaxfed.training.pseudo_labels.label_sources import BY_OWN_LABELS
from jaxfed.training.pseudo_labels.propagated_labels import is_one_program

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
