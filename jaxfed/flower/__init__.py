"""The same methods over a network, as Flower apps.

Here live messages, the exchange between server and clients, a client's folder, and what starts and ends a
deployment. What a client or a server computes does not: these are the functions that the simulation calls.
`launch.flower` and a Flower app import from here; nothing in jaxfed does. Flower (requirements-flower.txt) is
imported only in files that cannot do without it, so records and a client's steps work without it.
"""
