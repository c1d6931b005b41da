"""Conversion of a recipe for one client's estimator into a learner of all clients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxfed.errors import UsageError
from jaxfed.estimators.recipe import Recipe
from jaxfed.federation.execution.settings import HERE, Execution
from jaxfed.learners.learner import Learner
from jaxfed.learners.refitting import refitting
from jaxfed.rules import NOT_NEGATIVE, check_values, rules_of

_RULES = {"pseudo_weight": NOT_NEGATIVE}


def estimator_learner(recipe_of: Callable[..., Recipe]) -> Callable[..., Learner]:
    """Return the factory of learners whose clients have estimators of this kind.

    It takes the recipe's keywords, and those of `refitting`:

        num_classes: C.
        pseudo_weight: lambda, the weight of public labels relative to own ones; 1 by default.
        execution: where estimators are fitted; by default here, one after another.
    """

    def recipe(settings: Mapping[str, Any]) -> Recipe:
        try:
            return recipe_of(**settings)
        except TypeError as error:
            raise UsageError(f"{recipe_of.__name__}: {error}") from error

    def factory(
        *,
        num_classes: int,
        pseudo_weight: float = 1.0,
        execution: Execution = HERE,
        **settings: Any,
    ) -> Learner:
        check_values(recipe_of.__name__, _RULES, {"pseudo_weight": pseudo_weight})
        made = recipe(settings)
        return refitting(
            made, num_classes=num_classes, pseudo_weight=pseudo_weight, execution=execution
        )

    lifted = functools.wraps(recipe_of)(factory)
    common = [
        parameter
        for parameter in inspect.signature(factory, follow_wrapped=False).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    names = {parameter.name for parameter in common}
    lifted.rules = {**_RULES, **rules_of(recipe_of)}  # type: ignore[attr-defined]
    lifted.together = lambda given: recipe(  # type: ignore[attr-defined]
        {key: value for key, value in vars(given).items() if key not in names}
    )
    own = inspect.signature(recipe_of).parameters.values()
    lifted.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*common, *own], return_annotation=Learner
    )
    return lifted
