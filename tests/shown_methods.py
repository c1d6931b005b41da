"""A method beside its attack surface, as one object."""

from types import SimpleNamespace

from jaxfed.audit.surface import surface_of
from jaxfed.federation.rounds import Played


def shown(factory, **given):
    """The algorithm's fields, and `views` of states, cohort and key."""
    algorithm = factory(**given)
    views = of_round(surface_of(factory, given, algorithm))
    return SimpleNamespace(**algorithm._asdict(), views=views)


def of_round(look):
    """The same look at a round, of its parts."""
    return look and (
        lambda before, after, cohort, key: look(Played(1, before, after, {}, cohort, key))
    )
