"""Settings of a federation over a network: the section `deployment`, which a simulation does not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ml_collections import ConfigDict

from jaxfed.errors import UsageError, section
from jaxfed.rules import NOT_NEGATIVE, POSITIVE, Rule, at_least, check_values


def _are_nodes(value: Any) -> bool:
    if value is None or type(value) is int:
        return value is None or value >= 1
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(isinstance(name, str) and name for name in value)
        and len(set(value)) == len(value)
    )


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Limits within which a server waits for its clients.

    Attributes:
        nodes: clients of a deployment: a number, or names such as ('a', 'b'), where client j has the j-th
            name in its client.toml; None: federation.num_clients.
        quorum: smallest share of a stage's clients whose answers are enough; with fewer, the server stops and
            the same command continues.
        deadline: seconds that clients have for one stage; later answers are refused.
        retries: number of times that a client whose process crashed receives the same message again.
        wait_for_nodes: seconds that the server waits for all clients before its first round.
        largest_norm: largest Euclidean norm of a client's contribution to the server's means; a reply above
            it, or one that is not finite, is refused.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "nodes": Rule(object, "integers from 1 on, different names, or None", _are_nodes),
        "quorum": Rule(float, "numbers above 0 and up to 1", lambda value: 0 < value <= 1),
        "deadline": POSITIVE,
        "retries": at_least(0),
        "wait_for_nodes": NOT_NEGATIVE,
        "largest_norm": POSITIVE,
    }

    nodes: int | tuple[str, ...] | None = None
    quorum: float = 0.5
    deadline: float = 600.0
    retries: int = 1
    wait_for_nodes: float = 300.0
    largest_norm: float = 1e6

    def __post_init__(self) -> None:
        """Check the fields by `rules`."""
        check_values("Deployment", self.rules, vars(self))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, in the order of their numbers; () if any name will do."""
        return self.nodes if isinstance(self.nodes, tuple) else ()

    def num_nodes(self, num_clients: int) -> int:
        """Return the number of clients; `num_clients` is that of the simulation.

        Raises:
            UsageError: neither says how many, as in a simulation of all clients that the data have.
        """
        if self.nodes is None:
            if not num_clients:
                raise UsageError(
                    "the server of a network does not see how many clients the data have",
                    key="config.federation.num_clients",
                    value=num_clients,
                    allowed="use their number, or name them in config.deployment.nodes",
                )
            return num_clients
        return self.nodes if isinstance(self.nodes, int) else len(self.nodes)


def deployment_of(config: ConfigDict) -> Deployment:
    """Return the section of a config as an object.

    Raises:
        UsageError: a value that its rule does not allow.
    """
    with section("config.deployment", config.deployment):
        return Deployment(**config.deployment)
