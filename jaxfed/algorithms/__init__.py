"""The methods: one file or folder each, with the method's name. Tables, pages and tests include each.

A method that lives elsewhere is registered by `ALGORITHMS.register(name)` (`jaxfed.registry`).

A factory takes its ingredients by keyword: `ALGORITHMS[name](num_classes=C, **config[name])`, or
`ALGORITHMS[name](training=..., **config[name])` where it trains a model, `learner=...` where clients have
models of their own (`jaxfed.config.assembly`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxfed.federation.method import Method, declared
from jaxfed.registry import LazyFactory, Registry

if TYPE_CHECKING:
    from jaxfed.federation.algorithm import FederatedAlgorithm


PRESETS = {  # second name of a method: the method, its `pseudo_label` there, title in reports
    "fedavg_xclp": ("fedavg", "xclp", "FedAvg + XCLP"),
    "fedavg_xclp_prototypes": ("fedavg", "xclp_prototypes", "FedAvg + XCLP of prototypes"),
    "fedavg_per_client_lp": ("fedavg", "per_client_lp", "FedAvg + per-client LP"),
    "fedavg_network": ("fedavg", "network", "FedAvg + network"),
    "sage_xclp": ("sage", "xclp", "SAGE + XCLP"),
}

_BUILT_IN = {
    file.name: LazyFactory(f"{__name__}.{file.name}", file.name) for file in iter_modules(__path__)
}
_BUILT_IN |= {
    name: _BUILT_IN[method]._replace(keywords={"pseudo_label": source})
    for name, (method, source, _) in PRESETS.items()
}
ALGORITHMS: Registry[Callable[..., FederatedAlgorithm]] = Registry("method", _BUILT_IN)


def declaration_of(name: str) -> Method:
    """Return the declaration of a method, with its title; an unknown method has its name for a title."""
    declaration = declared(ALGORITHMS[name]) if name in ALGORITHMS else Method()
    title = PRESETS[name][-1] if name in PRESETS else declaration.title or name
    return replace(declaration, title=title)


def __getattr__(name: str) -> Callable[..., FederatedAlgorithm]:
    if name in _BUILT_IN:
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
        if not (isinstance(value, ModuleType) and name in _BUILT_IN):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Methods
