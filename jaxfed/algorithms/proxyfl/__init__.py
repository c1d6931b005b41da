"""The method is in `method.py`; the other files of this room are for it alone."""

from jaxfed.algorithms.proxyfl.method import proxyfl as proxyfl
