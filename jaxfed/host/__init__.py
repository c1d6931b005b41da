"""Services of the host for long computations: atomic files, checkpoints, signals, processes, a terminal.

Nothing here depends on clients, rounds or arrays on devices. Every other wing may import from here.
"""
