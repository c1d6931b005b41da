"""The methods, one a file. A new one is a file, a line here and a config; tests follow by themselves.

One that lives elsewhere is registered: `ALGORITHMS.register(name)` (`jaxfed.registry`).

A factory takes its ingredients by keyword: `ALGORITHMS[name](num_classes=C, **config[name])`, or
`ALGORITHMS[name](training=..., **config[name])` where it trains a model, `learner=...` where clients have
models of their own (`jaxfed.config.build.assembly`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxfed.federation.method import check_ingredients
from jaxfed.registry import Place, Registry

if TYPE_CHECKING:
    from jaxfed.federation.algorithm import FederatedAlgorithm


def _in(file: str, name: str = "", **keywords: Any) -> Place:
    return Place(f"{__name__}.{file}", name or file, keywords)


_OWN: dict[str, Place] = {
    "xclp": _in("xclp"),
    "per_client_lp": _in("label_propagation", "per_client_lp"),
    "pooled_lp": _in("label_propagation", "pooled_lp"),
    "client_knn": _in("client_knn"),
    "network": _in("network"),
    "fedavg": _in("fedavg"),
    "fedavg_xclp": _in("fedavg", pseudo_label="xclp"),
    "fedavg_xclp_prototypes": _in("fedavg", pseudo_label="xclp_prototypes"),
    "fedavg_per_client_lp": _in("fedavg", pseudo_label="per_client_lp"),
    "fedavg_network": _in("fedavg", pseudo_label="network"),
    "fedsem": _in("fedsem"),
    "dp_fedavg": _in("dp_fedavg"),
    "dp_fedavg_records": _in("dp_fedavg_records"),
    "fedprox": _in("fedprox"),
    "scaffold": _in("scaffold"),
    "feddyn": _in("feddyn"),
    "fedper": _in("fedper"),
    "fedrep": _in("fedper", "fedrep"),
    "fedproto": _in("fedproto"),
    "fedtgp": _in("fedtgp"),
    "fixmatch": _in("fixmatch"),
    "sage": _in("sage"),
    "sage_xclp": _in("sage", pseudo_label="xclp"),
    "fedlabel": _in("fedlabel"),
    "feddb": _in("feddb"),
    "rscfed": _in("rscfed"),
    "cbafed": _in("cbafed"),
    "proxyfl": _in("proxyfl"),
    "fedloke": _in("fedloke"),
    "feddure": _in("feddure"),
    "twinsight": _in("twinsight"),
    "fedirm": _in("fedirm"),
    "mixmatch": _in("mixmatch"),
    "fedmatch": _in("fedmatch"),
    "fedsiam": _in("fedsiam"),
    "protofssl": _in("protofssl"),
    "fedrgd": _in("fedrgd"),
    "semifl": _in("semifl"),
    "fl2": _in("fl2"),
    "fedcon": _in("fedcon"),
    "fedct": _in("fedct"),
    "local_learning": _in("local_learning"),
    "centralized": _in("centralized"),
    "distributed_distillation": _in("distributed_distillation"),
    "fedmd": _in("fedmd"),
    "dsfl": _in("dsfl"),
    "pate": _in("pate"),
}
ALGORITHMS: Registry[Callable[..., FederatedAlgorithm]] = Registry(
    "method", _OWN, check=check_ingredients
)


def __getattr__(name: str) -> Callable[..., FederatedAlgorithm]:
    if name in _OWN:
        return _named(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _named(name: str) -> Callable[..., FederatedAlgorithm]:
    """The factory of a method, whose results have its name."""
    factory = ALGORITHMS[name]

    @wraps(factory)
    def make(**keywords: Any) -> FederatedAlgorithm:
        return factory(**keywords)._replace(name=name)

    return make


class _Methods(ModuleType):
    """This package: `jaxfed.algorithms.fedavg` is the method, whose file has the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets each imported file as an attribute of its package.
        if not (isinstance(value, ModuleType) and name in _OWN):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Methods
