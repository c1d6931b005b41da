"""Arrays in, arrays out: the computations that are compiled, each beside its cost.

No word of clients, rounds or parties, and no file or flag. Every other wing may import from here.
"""
