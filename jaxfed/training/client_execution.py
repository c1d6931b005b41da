"""Execution of a round: the part of `Training` that changes results by rounding at most.

ClientExecution(map_clients=partial(client_map, strategy="vmap"))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax

from jaxfed.federation.execution.client_map import (
    MapClients,
    client_map,
    fastest_apart,
    fastest_strategy,
    is_one_cpu,
)
from jaxfed.federation.execution.settings import HERE, Execution
from jaxfed.settings import Count, Described, check

_FASTEST: Any = None
_AS_CLIENTS: Any = None  # computed from `map_clients`
_Map = Annotated[MapClients, Described("partial(client_map, strategy='vmap')")]


@dataclass(frozen=True)
class ClientExecution:
    """Execution of a round's clients on devices, and of the rest of a round on the host.

    Attributes:
        map_clients: execution of clients within a round; by default the fastest for the present devices.
        clients_multiple: the number of clients is padded to a multiple of this (devices).
        map_apart: execution of clients that are independent of each other within a round (FedCT's networks),
            outside of `jax.jit`; None: by `map_clients`. By default `core_each` if one CPU's cores are
            devices and `map_clients` is not given.
        map_labeling: execution of clients while they are labeled; by default `map_clients`.
        host: processes and devices of the host's computations.
    """

    map_clients: _Map = _FASTEST
    clients_multiple: Count = 1
    map_apart: _Map | None = None
    map_labeling: _Map = _AS_CLIENTS
    host: Execution = HERE

    def __post_init__(self) -> None:
        """Check the types, and choose the fastest execution for the present devices if none is given."""
        check(self)
        if self.map_clients is None:
            # It is not known here whether a round's clients share a CPU's cores evenly.
            strategy = "map" if is_one_cpu() else fastest_strategy()
            object.__setattr__(self, "map_clients", partial(client_map, strategy=strategy))
            if self.map_apart is None:
                object.__setattr__(self, "map_apart", fastest_apart())
            if strategy == "shard_map":
                object.__setattr__(self, "clients_multiple", jax.device_count())
        if self.map_labeling is None:
            object.__setattr__(self, "map_labeling", self.map_clients)
