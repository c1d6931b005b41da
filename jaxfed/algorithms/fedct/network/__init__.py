"""FedCT over a network: a client's part of a round and the server's, each in a process of its own.

Simulations need nothing of this room. It knows no transport: `jaxfed.federation.sides.Ask` is what sends.
"""
