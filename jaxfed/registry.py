"""Registries of objects that a config names; external code can add its own.

    from jaxfed.algorithms import ALGORITHMS

    @ALGORITHMS.register("mymethod")
    @method()                                       # jaxfed.federation.method; only for methods
    def mymethod(*, training, mu: NotNegative = 0.1): ...

A config file that imports such code may then set `config.algorithm = "mymethod"`, and the factory's
keyword-only arguments in a section of that name, `config.mymethod.mu`.
"""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from jaxfed.errors import UsageError

Factory = TypeVar("Factory", bound=Callable)


class Place(NamedTuple):
    """The place where a factory is defined; its file is imported when the factory is first used.

    Fields:
        module: dotted name of the module.
        name: of the factory in it.
        keywords: keywords that are already given.
    """

    module: str
    name: str
    keywords: Mapping[str, Any] = {}

    def load(self) -> Any:
        """Import the factory."""
        factory = getattr(import_module(self.module), self.name)
        return partial(factory, **self.keywords) if self.keywords else factory


def imported_on_use(package: str, files: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package whose names are imported from their files when they are used.

    Args:
        package: its dotted name.
        files: name -> the file in the package that defines it.
    """

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
        own: Mapping[str, Factory] | Mapping[str, Place],
        *,
        reserved: Collection[str] = (),
    ) -> None:
        """A registry with jaxfed's own entries.

        Args:
            kind: of object, for messages.
            own: name -> factory, or the module that defines it.
            reserved: names that cannot be registered, besides those of `own`.
        """
        super().__init__(own)  # type: ignore[arg-type]
        self._kind, self._reserved = kind, frozenset([*own, *reserved])

    def __getitem__(self, name: str) -> Factory:
        """The factory of this name, imported if it has not been yet."""
        found: Any = super().__getitem__(name)
        if isinstance(found, Place):
            self[name] = found = found.load()
        factory: Factory = found
        return factory

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """A decorator that adds a factory under this name.

        Registering the same factory again is allowed, as a sweep runs its config file once for each point.

        Raises:
            UsageError: a name that a config's section cannot have, a name of jaxfed, or the name of another
                factory; a factory with a setting that is not a keyword.
        """
        if not name.isidentifier():
            raise UsageError(f"{self._kind} {name!r}: a name must be a Python identifier")
        if name in self._reserved:
            raise UsageError(f"{self._kind} {name!r}: is one of jaxfed's own; take another name")

        def add(factory: Factory) -> Factory:
            if name in self and (there := _identity(self[name])) != _identity(factory):
                raise UsageError(f"{self._kind} {name!r}: {there} has this name already")
            for parameter in inspect.signature(factory).parameters.values():
                is_set = parameter.default not in (parameter.empty, None)
                if is_set and parameter.kind is not parameter.KEYWORD_ONLY:
                    raise UsageError(
                        f"{self._kind} {name!r}: its setting {parameter.name!r} must be a keyword, behind a "
                        "* in the signature, so that configs can have it"
                    )
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
