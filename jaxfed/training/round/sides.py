"""The sides of a method on a network, by its labels and its sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxfed.federation.algorithm import Sides
from jaxfed.training.pseudo_labels.label_sources import BY_XCLP
from jaxfed.training.round.joint_labels import joint_labeling
from jaxfed.training.round.masked_network import SummedAskedClients, SummingClient
from jaxfed.training.round.network import AskedClients, training_sides
from jaxfed.training.round.parts import Parts


def sides_of(parts: Parts, trained: Callable[..., Any], one_round: Callable[..., Any]) -> Sides:
    """Return the server's side and a client's; arguments as `training_sides`.

    Raises:
        UsageError: settings that do not run on a network.
    """
    training, joint = parts.training, None
    if parts.pseudo_label in BY_XCLP:
        joint = joint_labeling(training.pseudo_labels[parts.pseudo_label])
    if training.server.sums == "plaintext":
        return training_sides(parts, trained, one_round, joint, AskedClients)
    sides = training_sides(parts, trained, one_round, joint, SummedAskedClients)
    return sides._replace(client=SummingClient(sides.client).side)
