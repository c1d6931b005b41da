"""XCLP over a network: the server's labeling, and a client's; each in a process of its own.

Simulations need nothing of this room. It knows no transport: `jaxfed.federation.sides.Ask` is what sends.
"""
