"""Needs of methods that train a model, declared at their factories and read without a call of them.

    @needs(pseudo_label="unlabeled", labels_at=("clients", "server"), two_views=True)
    def fixmatch(*, training: Training, ...): ...

    needs_of(fixmatch, {}).pseudo_label         # "unlabeled"

A config is checked by them before any data is read, and they say which of its sections a method reads. A
factory without a declaration may need anything; it raises its errors when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from jaxfed.rules import plain_factory

Factory = TypeVar("Factory", bound=Callable[..., Any])
T = TypeVar("T")
Of = Callable[[SimpleNamespace], T]  # of the factory's keywords, as attributes

EVERYWHERE = ("clients", "server")


class Needs(NamedTuple):
    """Needs of one method.

    Fields:
        pseudo_label: name of its source of labels after stage 1; None: unknown, any of them.
        labels_at: places where labels may be, out of "clients" and "server".
        two_views: True if it compares two views of an example and needs a strong augmentation; None: unknown.
        averages: True if its server averages model changes and no more, so that rounds may be asynchronous.
        private: True if it promises an epsilon for clients' rows: no exact statistics of them may enter.
    """

    pseudo_label: str | None = None
    labels_at: tuple[str, ...] = EVERYWHERE
    two_views: bool | None = None
    averages: bool = False
    private: bool = False


def needs(
    *,
    pseudo_label: str | Of[str] = lambda given: given.pseudo_label,
    labels_at: tuple[str, ...] = ("clients",),
    two_views: bool = False,
    averages: bool = False,
    private: bool = False,
) -> Callable[[Factory], Factory]:
    """Declare a factory's needs: values, or functions of its keywords; see `Needs`.

    By default, the source of labels is the keyword `pseudo_label`.
    """

    def declared(factory: Factory) -> Factory:
        factory.needs = lambda given: Needs(  # type: ignore[attr-defined]
            pseudo_label(given) if callable(pseudo_label) else pseudo_label,
            labels_at,
            two_views,
            averages,
            private,
        )
        return factory

    return declared


def needs_of(factory: Callable[..., Any], keywords: Mapping[str, Any]) -> Needs:
    """Return the needs of a factory, or of a partial one, with these keywords, which include its defaults."""
    plain, _ = plain_factory(factory)
    declared: Of[Needs] | None = getattr(plain, "needs", None)
    return declared(SimpleNamespace(**keywords)) if declared else Needs()
