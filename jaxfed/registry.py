"""Registries of objects that a config names; external code can add its own.

    from jaxfed.algorithms import ALGORITHMS

    @ALGORITHMS.register("mymethod")
    @method()                                       # jaxfed.federation.method; only for methods
    def mymethod(*, training, mu: NotNegative = 0.1): ...

A config file that imports such code may then set `config.algorithm = "mymethod"`, and the factory's
keyword-only arguments in a section of that name, `config.mymethod.mu`.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from jaxfed.errors import UsageError

Factory = TypeVar("Factory", bound=Callable)


class LazyFactory(NamedTuple):
    """A factory that is imported when it is first used: its module and name, and keywords to bind."""

    module: str
    name: str
    keywords: Mapping[str, Any] = {}


def imported_on_use(package: str, files: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package whose names are imported from their `files` when they are used."""

    def attribute(name: str) -> Any:
        if name in files:
            return getattr(import_module(f"{package}.{files[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute


class Registry(UserDict[str, Factory]):
    """Name -> factory, those of jaxfed first; `register` adds others."""

    def __init__(
        self,
        kind: str,
        factories: Mapping[str, Factory] | Mapping[str, LazyFactory],
        *,
        reserved: Collection[str] = (),
        decorator: Callable[[Any, str], Any] | None = None,
    ) -> None:
        """A registry of objects of a kind, of which `reserved` names and those of `factories` are taken.

        `decorator`: factory, name -> its replacement, such as `jaxfed.settings.hinted`.
        """
        self._kind, self._reserved = kind, frozenset([*factories, *reserved])
        self._decorator = decorator
        super().__init__(factories)  # type: ignore[arg-type]

    def __setitem__(self, name: str, factory: Factory) -> None:
        """Add a factory, imported or not."""
        if self._decorator is not None and not isinstance(factory, LazyFactory):
            factory = self._decorator(factory, name)
        super().__setitem__(name, factory)

    def __getitem__(self, name: str) -> Factory:
        """The factory of this name, imported if it has not been yet."""
        entry: Any = super().__getitem__(name)
        if isinstance(entry, LazyFactory):
            lazy, entry = entry, getattr(import_module(entry.module), entry.name)
            entry = partial(entry, **lazy.keywords) if lazy.keywords else entry
            self[name] = entry
        factory: Factory = super().__getitem__(name)
        return factory

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """A decorator that adds a factory under this name; a sweep's file adds it once for each point."""
        if not name.isidentifier():
            raise UsageError(f"{self._kind} {name!r}: a name must be a Python identifier")
        if name in self._reserved:
            raise UsageError(f"{self._kind} {name!r}: is one of jaxfed's own; take another name")

        def add(factory: Factory) -> Factory:
            if name in self and (existing := _identity(self[name])) != _identity(factory):
                raise UsageError(f"{self._kind} {name!r}: {existing} has this name already")
            self[name] = factory
            return factory

        return add

    def from_outside(self) -> tuple[str, ...]:
        """The registered external names, in order of registration."""
        return tuple(name for name in self if name not in self._reserved)


def _identity(factory: Callable) -> str:
    """Module and qualified name of a factory; equal each time its file is run."""
    inner = getattr(factory, "func", factory)  # a functools.partial
    return f"{inner.__module__}.{inner.__qualname__}"
