"""Tests of the properties required of every method; one import runs them on a user's own method.

May import everything but the launcher; only tests import it, here and in other repositories.
"""

from jaxfed.testing.method_checks import MethodChecks

__all__ = ["MethodChecks"]
