"""Calls of a server to its clients: who they are, and one exchange for each step of a round.

    calls = connect(network, config, limits, data, workdir)
    algorithm = calls.algorithm(algorithm, name)       # its round asks the clients

stages.jsonl, beside metrics.jsonl, has one line when a stage of a round begins and one when it ends: who
replied, who is lost and why, seconds, bytes. At the end of a round it has the step that made each client's
state. A server that starts again reads there which states belong to its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.deployment import Deployment
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, ServerState
from jaxfed.federation.census import Census, census_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.feature_statistics import FeatureSums
from jaxfed.flower.client.client_run import MESSAGE, REPLY, SETUP
from jaxfed.flower.messages import pytrees, records, setup
from jaxfed.flower.messages.network import Network
from jaxfed.flower.messages.records import Record
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.server import admission
from jaxfed.flower.server.admission import Admitted, Expected
from jaxfed.flower.server.exchange import Answers, Exchange
from jaxfed.flower.server.server_data import ServerData
from jaxfed.host.checkpoint import Checkpoints

STAGES = "stages.jsonl"
NO_CENSUS = Census(1, 1, 1, FeatureSums(np.zeros(1), np.zeros(1), 1))
_THEN = "the run stops; the same command continues it"


def connect(
    network: Network,
    config: ConfigDict,
    limits: Deployment,
    data: ServerData,
    place: Path,
    **clock: Any,
) -> ClientCalls:
    """Wait for the clients, ask who they are, and return the calls to them.

    Raises:
        UsageError: a client is missing after `wait_for_nodes`, or was refused; the line says which and why.
    """
    number = limits.num_nodes(config.federation.num_clients)
    text = setup.config_text(config)
    run = _name_of_run(text, place)
    nodes = admission.wait_for_nodes(network, number, seconds=limits.wait_for_nodes, **clock)
    expected = Expected(range(number), setup.fingerprint(text, config.algorithm))
    asked: Record = {"config": text, "method": config.algorithm}
    admitted = admission.admit(
        network,
        nodes,
        expected,
        asked,
        run=run,
        deadline=limits.deadline,
        retries=limits.retries,
        **clock,
    )
    _check_complete(admitted, number, data)
    hellos = [admitted.hellos[client] for client in range(number)]
    census = census_of([said.census.counts for said in hellos])
    return ClientCalls(
        Exchange(
            network,
            admitted.nodes,
            run=run,
            deadline=limits.deadline,
            retries=limits.retries,
            first_step=admitted.last_step + 1,
            **clock,
        ),
        Setup(text, config.algorithm, number, data.num_classes, census._replace(labels=())),
        data.federation(census, number),
        limits.quorum,
        place,
        tuple(f"refused node {node}: {why}" for node, why in sorted(admitted.refused.items())),
    )


@dataclass
class ClientCalls:
    """Calls to the clients of a run.

    Attributes:
        exchange: with their nodes.
        told: everything that a client must know in each request.
        federation: as the server knows it.
        quorum: smallest share of a stage's clients that must reply.
        place: the workdir.
        remarks: lines about nodes that were refused.
    """

    exchange: Exchange
    told: Setup
    federation: Federation
    quorum: float
    place: Path
    remarks: tuple[str, ...] = ()
    _of_round: dict[str, Any] = field(default_factory=dict)

    def algorithm(self, algorithm: FederatedAlgorithm, name: str) -> FederatedAlgorithm:
        """Return the method with a round that asks the clients."""
        assert algorithm.sides is not None  # checked
        init, play = algorithm.sides().server(self.ask, self.federation)
        states = _has_states(algorithm, self.federation)
        self._told = self.told._replace(method=name).to_record()
        self._continues, self._begun = states, False

        def round_(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            number = int(state.round) + 1
            self._begin(number)
            after, metrics = play(state, cohort, key)
            self._write(round=number, stage="end", states=self.exchange.states)
            return after, {**metrics, "network": self._of_round}

        return algorithm._replace(init=init, round=round_, evaluate_clients=None)

    def ask(
        self, step: str, requests: Mapping[int, Any], reply: Any, *, round_number: int
    ) -> Mapping[int, Any]:
        """Send each client its message of a step, and return the replies (see `Ask`).

        Raises:
            TooFewClients: fewer clients replied than the quorum asks for.
        """
        self._write(round=round_number, stage=step, clients=sorted(requests))
        head: Record = {**records.prefixed(self._told, SETUP), "cohort": len(requests)}
        messages = {
            client: head | records.prefixed(pytrees.to_record(message), MESSAGE)
            for client, message in requests.items()
        }
        answers = self.exchange.ask(
            step,
            messages,
            round=round_number,
            read=lambda client, content: pytrees.from_record(records.part(content, REPLY), reply),
            continues=self._continues,
        )
        self._count(answers, round_number)
        answers.enough(self.quorum, then=_THEN)
        return answers.replies

    def _begin(self, number: int) -> None:
        """Continue clients from their states before round `number`; let them drop those that are obsolete."""
        written = _states_by_round(self.place / STAGES) if self._continues else {}
        if not self._begun:
            self.exchange.states = dict(written.get(number - 1, {}))
            self._begun = True
        saved = Checkpoints(self.place / "checkpoints").newest()
        if saved is not None and saved in written:
            self.exchange.commit(written[saved])
        self._of_round = {}

    def _count(self, answers: Answers, number: int) -> None:
        for client, lost in answers.lost.items():
            if lost.kind == "StateLost":  # it begins anew in its next round
                self.exchange.states.pop(client, None)
        found = {
            "replies": len(answers.replies),
            "lost": len(answers.lost),
            "seconds": round(answers.seconds, 3),
            "upload_bytes": answers.bytes_up,
            "download_bytes": answers.bytes_down,
        }
        for key, value in found.items():
            self._of_round[key] = self._of_round.get(key, 0) + value
        why = {client: each.reason for client, each in answers.lost.items()}
        self._write(round=number, stage=f"{answers.step} ended", **found, why=why)

    def _write(self, **line: Any) -> None:
        with (self.place / STAGES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _name_of_run(text: str, place: Path) -> str:
    """The same name for a run that is started again, another one for another workdir or config."""
    return hashlib.sha256(json.dumps([text, str(place.resolve())]).encode()).hexdigest()[:16]


def _check_complete(admitted: Admitted, number: int, data: ServerData) -> None:
    missing = sorted(set(range(number)) - admitted.nodes.keys())
    if missing:
        refused = "; ".join(f"node {node}: {why}" for node, why in admitted.refused.items())
        raise UsageError(
            f"clients {', '.join(map(str, missing))} of {number} are missing"
            f"{f'; refused: {refused}' * bool(refused)}"
        )
    for client, said in admitted.hellos.items():
        form = [said.census.dtype, *said.census.shape]
        if form != [data.dtype.name, *data.example]:
            raise UsageError(
                f"client {client} has examples {form}, the server {[data.dtype.name, *data.example]}"
            )
        if said.census.largest_label >= data.num_classes:
            raise UsageError(
                f"client {client} has the label {said.census.largest_label}; there are {data.num_classes} "
                "classes"
            )


def _has_states(algorithm: FederatedAlgorithm, federation: Federation) -> bool:
    """True if clients of this method carry a state from round to round."""
    assert algorithm.sides is not None
    key = jax.random.key(0)
    side = algorithm.sides().client
    return bool(jax.tree.leaves(side.state_form(key, federation)))


def _states_by_round(file: Path) -> dict[int, dict[int, int]]:
    """The states of clients after each round: {round: {client: number of the step that made it}}."""
    if not file.exists():
        return {}
    found = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # half a line, of a server that was killed
            continue
        if line.get("stage") == "end":
            found[int(line["round"])] = {int(c): int(n) for c, n in line["states"].items()}
    return found
