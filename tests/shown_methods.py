"""A method beside its attack surface, as one object."""

from types import SimpleNamespace

from jaxfed.audit.surface import surface_of


def shown(factory, **given):
    """The algorithm's fields, `views` and `instructions`."""
    algorithm = factory(**given)
    surface = surface_of(factory, given, algorithm)
    return SimpleNamespace(**algorithm._asdict(), **surface._asdict())
