"""What a long computation asks of its machine: whole files, saved states, signals, processes, a terminal.

Nothing here knows of clients, rounds or arrays on devices. Every other wing may import from here.
"""
