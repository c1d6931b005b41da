"""Needs of methods that train a model, declared at their factories and read without a call of them.

    @needs(pseudo_label="unlabeled", labels_at=("clients", "server"), two_views=True)
    def fixmatch(*, training: Training, ...): ...

    needs_of(fixmatch, {}).pseudo_label         # "unlabeled"

A config is checked by them before any data is read, and they say which of its sections a method reads. A
factory without a declaration may need anything; it raises its errors when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import wraps
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jaxfed.errors import UsageError
from jaxfed.rules import plain_factory
from jaxfed.training.server.aggregate import WEIGHTINGS

if TYPE_CHECKING:
    from jaxfed.training.specification import Training

Factory = TypeVar("Factory", bound=Callable[..., Any])
T = TypeVar("T")
Of = Callable[[SimpleNamespace], T]  # of the factory's keywords, as attributes

EVERYWHERE = ("clients", "server")
_is_shared = ContextVar("is_shared", default=False)
UNREAD_BY_LEARNERS = ("strong_augment", "weighting", "aggregate")  # by separate networks of clients


class Needs(NamedTuple):
    """Needs of one method.

    Fields:
        pseudo_label: name of its source of labels after stage 1; None: unknown, any of them.
        labels_at: places where labels may be, out of "clients" and "server".
        two_views: True if it compares two views of an example and needs a strong augmentation; None: unknown.
        averages: True if its server averages model changes and no more, so that rounds may be asynchronous.
        private: True if it guarantees an epsilon for clients' rows: it may use no exact statistics.
        unread: fields of `LocalTraining` and `ServerTraining` that no round of it reads; values are refused.
        weighting: clients' weights in its paper's mean, a key of `WEIGHTINGS`.
    """

    pseudo_label: str | None = None
    labels_at: tuple[str, ...] = EVERYWHERE
    two_views: bool | None = None
    averages: bool = False
    private: bool = False
    unread: tuple[str, ...] = ()
    weighting: str = "examples"


def needs(
    *,
    pseudo_label: str | Of[str] = lambda given: given.pseudo_label,
    labels_at: tuple[str, ...] = ("clients",),
    two_views: bool = False,
    averages: bool = False,
    private: bool = False,
    unread: tuple[str, ...] = (),
    weighting: str | Of[str] = "examples",
) -> Callable[[Factory], Factory]:
    """Declare a factory's needs: values, or functions of its keywords; see `Needs`.

    By default, the source of labels is the keyword `pseudo_label`. A call of the factory refuses a `training`
    with values that no round reads; without two views a strong augmentation is one. A `training` without a
    weighting gets the method's.
    """
    unread += () if two_views else ("strong_augment",)

    def weighting_of(given: SimpleNamespace) -> str:
        return weighting(given) if callable(weighting) else weighting

    def declared(factory: Factory) -> Factory:
        defaults = {name: each.default for name, each in signature(factory).parameters.items()}

        @wraps(factory)
        def made(**keywords: Any) -> Any:
            if "training" in keywords:
                training = keywords["training"]
                if _is_shared.get():
                    training = as_read(training, unread)
                refuse_unread(training, unread, factory.__name__)
                if training.server.weighting is None:
                    name = weighting_of(SimpleNamespace(**{**defaults, **keywords}))
                    training = training.with_server(weighting=WEIGHTINGS[name])
                keywords["training"] = training
            return factory(**keywords)

        made.needs = lambda given: Needs(  # type: ignore[attr-defined]
            pseudo_label(given) if callable(pseudo_label) else pseudo_label,
            labels_at,
            two_views,
            averages,
            private,
            unread,
            weighting_of(given),
        )
        return made  # type: ignore[return-value]

    return declared


@contextmanager
def shared_training() -> Iterator[None]:
    """Drop unread settings of a training in place of refusing them, because several methods share it.

    This also holds for methods that a user's own factory calls.
    """
    token = _is_shared.set(True)
    try:
        yield
    finally:
        _is_shared.reset(token)


def refuse_unread(training: Training, unread: Collection[str], method: str) -> None:
    """Refuse values of a training that a method does not read.

    Raises:
        UsageError: names the first of these fields that is not at its default.
    """
    for part in (training.local, training.server):
        for field in fields(part):
            if field.name in unread and getattr(part, field.name) is not field.default:
                owner = type(part).__name__
                raise UsageError(
                    f"{method!r} does not read it",
                    key=field.name,
                    owner=owner,
                    allowed="leave it out",
                )


def as_read(training: Training, unread: Collection[str]) -> Training:
    """Return the training of several methods as one of them reads it, the other fields at their defaults."""
    local, server = (
        {field.name: field.default for field in fields(part) if field.name in unread}
        for part in (training.local, training.server)
    )
    return training.with_local(**local).with_server(**server)


def needs_of(factory: Callable[..., Any], keywords: Mapping[str, Any]) -> Needs:
    """Return the needs of a factory, or of a partial one, with these keywords, which include its defaults."""
    plain, _ = plain_factory(factory)
    declared: Of[Needs] | None = getattr(plain, "needs", None)
    return declared(SimpleNamespace(**keywords)) if declared else Needs()
