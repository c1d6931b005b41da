"""Control of a SuperLink: register nodes, see who is online, start a run and follow it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from jaxfed.errors import UsageError
from jaxfed.flower.deployment.processes import DeploymentError

R = TypeVar("R")
RunSettings = Mapping[str, str | int | float | bool]

_REQUIREMENTS = "requirements-flower.txt"
_PROXIES = ("NO_PROXY", "no_proxy")


class Status(NamedTuple):
    """State of a run: `text` is "pending", "starting", "running" or "finished"."""

    text: str
    outcome: str = ""
    details: str = ""

    @property
    def is_finished(self) -> bool:
        """True if nothing of it runs any more."""
        return self.text == "finished"

    @property
    def is_completed(self) -> bool:
        """True if it has finished without an error."""
        return self.is_finished and self.outcome == "completed"


class Controls(Protocol):
    """The part of a SuperLink that starting a federation needs; methods raise `DeploymentError`."""

    def register(self, public_key: Path) -> int:
        """Register a node by its public key, unless it is registered; return its number."""

    def online(self) -> set[int]:
        """Return the numbers of all nodes that are online."""

    def submit(self, app: Path, settings: RunSettings) -> int:
        """Start a run of an app's folder; return its number."""

    def status(self, run: int) -> Status:
        """Return the state of a run."""

    def output(self, run: int) -> Iterator[str]:
        """Yield pieces of what a run's server prints until the run ends."""

    def stop(self, run: int) -> None:
        """Stop a run."""

    def close(self) -> None:
        """Close the connection."""


def check_flower() -> None:
    """Check that Flower is installed.

    Raises:
        UsageError: it is not.
    """
    if find_spec("flwr") is None:
        raise UsageError(f"Flower is missing; pip install -r {_REQUIREMENTS}")


def loopback_without_proxy(environment: MutableMapping[str, str]) -> None:
    """Make HTTP clients connect to this machine directly, whatever proxy there is for others."""
    for name in _PROXIES:
        there = [part for part in environment.get(name, "").split(",") if part]
        environment[name] = ",".join(dict.fromkeys([*there, "127.0.0.1", "localhost", "::1"]))


class Control:
    """Client of a SuperLink's control interface (`Controls`)."""

    def __init__(self, address: str, root_certificate: Path | None) -> None:
        """Prepare a connection to HOST:PORT; without a certificate it is not encrypted."""
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

        loopback_without_proxy(os.environ)
        certificate = None if root_certificate is None else root_certificate.read_bytes()
        self._client = ControlHttpClient.from_server_address(
            address,
            certificate is None,
            certificate,
            [RuntimeVersionHttpInterceptor(component_name="jaxfed")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def register(self, public_key: Path) -> int:
        """Register a node by its public key, unless it is registered; return its number."""
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        read = load_ssh_public_key(public_key.read_bytes())
        if not isinstance(read, EllipticCurvePublicKey):
            raise DeploymentError(f"{public_key}: not an ECDSA public key")
        key = public_key_to_bytes(read)
        listed = _call(self._client.ListNodes, ListNodesRequest()).nodes_info
        for node in listed:
            if node.public_key == key and node.status != "unregistered":
                return int(node.node_id)
        answer = _call(self._client.RegisterNode, RegisterNodeRequest(public_key=key))
        if not answer.node_id:
            raise DeploymentError(f"{public_key}: the SuperLink did not register this node")
        return int(answer.node_id)

    def online(self) -> set[int]:
        """Return the numbers of all nodes that are online."""
        from flwr.proto.control_pb2 import ListNodesRequest

        listed = _call(self._client.ListNodes, ListNodesRequest()).nodes_info
        return {int(node.node_id) for node in listed if node.status == "online"}

    def submit(self, app: Path, settings: RunSettings) -> int:
        """Start a run of an app's folder; return its number."""
        import hashlib

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        with warnings.catch_warnings():  # Flower's, about what it uses itself
            warnings.simplefilter("ignore", DeprecationWarning)
            content = build_fab_from_disk(app)
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
            override_config=user_config_to_proto(dict(settings)),
        )
        answer = _call(self._client.StartRun, request)
        if not answer.HasField("run_id"):
            raise DeploymentError("the SuperLink did not start the run")
        return int(answer.run_id)

    def status(self, run: int) -> Status:
        """Return the state of a run."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = _call(self._client.ListRuns, ListRunsRequest(run_id=run)).run_dict[run].status
        return Status(found.status, found.sub_status, found.details)

    def output(self, run: int) -> Iterator[str]:
        """Yield pieces of what a run's server prints until the run ends."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        request = StreamLogsRequest(run_id=run, after_timestamp=0.0)
        for piece in self._client.StreamLogs(request):
            yield piece.log_output

    def stop(self, run: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        _call(self._client.StopRun, StopRunRequest(run_id=run))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _call(method: Callable[[Any], R], request: Any) -> R:
    """Call a method of the SuperLink; its errors are of one line."""
    import httpx

    try:
        return method(request)
    except httpx.HTTPStatusError as error:
        text = " ".join(error.response.text.split())[:300]
        raise DeploymentError(
            f"the SuperLink refuses: {error.response.status_code} {text}"
        ) from error
    except httpx.HTTPError as error:
        raise DeploymentError(f"the SuperLink does not answer: {error}") from error
