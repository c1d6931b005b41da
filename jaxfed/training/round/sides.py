"""The sides of a method on a network, by its labels and its sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Ask, ClientSide, Init, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.settings import choose_one_of
from jaxfed.training.pseudo_labels.label_sources import AT_CLIENTS, BY_XCLP
from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels
from jaxfed.training.round.joint_labels import (
    JointlyLabelingClient,
    labeled_jointly,
    no_labels,
)
from jaxfed.training.round.masked_network import SummedAskedClients, SummingClient
from jaxfed.training.round.network import (
    AskedClients,
    LabeledByClients,
    TrainingClient,
    labels_at_clients,
)
from jaxfed.training.round.parts import Parts
from jaxfed.training.round.runner import Outcome, Stage
from jaxfed.training.server_state import ServerState
from jaxfed.xclp.network import check_network


def sides_of(parts: Parts, trained: Callable[..., Outcome], one_round: Callable[..., Any]) -> Sides:
    """Return the server's side and a client's, by `trained` and `one_round` of `jaxfed.training.round.round`.

    Raises:
        UsageError: settings that do not run on a network: not all clients of a cohort are to train; at the
            server, a labeling that needs more than a client's own examples and the model.
    """
    training, pseudo_label = parts.training, parts.pseudo_label
    if training.training_cohort_size:
        raise UsageError(
            "on a network all clients of a round train",
            key="training_cohort_size",
            owner="training",
            value=training.training_cohort_size,
            allowed="set it to 0",
        )
    if training.server.presence:
        raise UsageError(
            "clients of a network leave by themselves",
            key="presence",
            owner="ServerTraining",
            value=training.server.presence,
            allowed="use ()",
        )
    source = training.pseudo_labels[pseudo_label]
    joint = source if isinstance(source, XclpLabels) else None  # labels by all clients together
    if joint is None:
        client = TrainingClient(parts, (training.pseudo_labels["none"], source))
        side = ClientSide(client.init, client.answer, client.form)
    else:
        check_network(joint.parameters)
        client = TrainingClient(parts, (training.pseudo_labels["none"], no_labels))
        side = JointlyLabelingClient(client, joint).side
    asked = AskedClients
    if training.server.sums != "plaintext":
        asked, side = SummedAskedClients, SummingClient(side).side

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        if joint is None and pseudo_label not in AT_CLIENTS:
            raise UsageError(
                "on a network clients label their own examples",
                key="pseudo_label",
                value=pseudo_label,
                allowed=choose_one_of((*AT_CLIENTS, *BY_XCLP)),
            )
        labels = labels_at_clients
        if joint is not None:
            labels = partial(labeled_jointly, joint, ask, federation)
        compiled = cache(lambda function, *fixed: jax.jit(partial(function, *fixed)))

        def served(stage: int, label: Any) -> Stage:
            def run(
                state: ServerState, cohort: Cohort, labels: LabeledByClients, *others: Any
            ) -> Outcome:
                clients = asked(client, stage, ask, federation, compiled, cohort, labels)
                found = trained(parts, stage, clients, state, *others)
                return found._replace(communication=clients.communication)

            return label, run

        stages = served(1, labels_at_clients), served(2, labels)
        return client.init_server, partial(one_round, parts, stages)

    return Sides(server, side)
