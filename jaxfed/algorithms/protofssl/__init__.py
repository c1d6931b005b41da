"""ProtoFSSL. The method is in `method.py`; the other files of this folder serve it alone."""

from jaxfed.algorithms.protofssl.method import protofssl as protofssl
