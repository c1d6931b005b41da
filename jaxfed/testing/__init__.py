"""What every method must hold, as tests that one import runs on a method of one's own.

Stands on everything but the launcher; nothing imports it but tests, here and elsewhere.
"""

from jaxfed.testing.method_checks import MethodChecks

__all__ = ["MethodChecks"]
