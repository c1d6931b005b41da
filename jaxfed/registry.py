"""Tables of things that a config names, to which code outside of this repository adds its own.

    from jaxfed.algorithms import ALGORITHMS

    @ALGORITHMS.register("mymethod")
    def mymethod(*, training, mu=0.1): ...

A config file that imports such code may then say `config.algorithm = "mymethod"`, and set the factory's
keywords in a section of that name, `config.mymethod.mu`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from jaxfed.errors import UsageError

Factory = TypeVar("Factory", bound=Callable)


class Registry(dict[str, Factory]):
    """Name -> factory, those of this repository first; `register` adds others."""

    def __init__(
        self, kind: str, own: Mapping[str, Factory], *, reserved: Collection[str] = ()
    ) -> None:
        """`reserved`: names that nothing can be registered under, beside those of `own`."""
        super().__init__(own)
        self._kind, self._reserved = kind, frozenset([*own, *reserved])

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """A decorator that adds a factory under this name.

        The same again is no mistake: a sweep runs its config file, and with it what the file registers,
        once for each of its points.

        Raises:
            UsageError: no name that a config's section can have, one of this repository's own, or one that
                another factory has.
        """
        if not name.isidentifier():
            raise UsageError(f"{self._kind} {name!r}: a name must be a Python identifier")
        if name in self._reserved:
            raise UsageError(f"{self._kind} {name!r}: is one of jaxfed's own; take another name")

        def add(factory: Factory) -> Factory:
            there = self.get(name)
            if there is not None and _identity(there) != _identity(factory):
                raise UsageError(
                    f"{self._kind} {name!r}: {'.'.join(_identity(there))} has this name already"
                )
            self[name] = factory
            return factory

        return add

    def from_outside(self) -> tuple[str, ...]:
        """The names that were registered, in their order."""
        return tuple(name for name in self if name not in self._reserved)


def _identity(factory: Callable) -> tuple[str, str]:
    """Where a factory is written, the same whenever its file is run."""
    inner = getattr(factory, "func", factory)  # of a functools.partial
    return inner.__module__, inner.__qualname__
