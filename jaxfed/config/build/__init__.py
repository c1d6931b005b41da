"""From a config to objects: networks, training specifications, learners, attackers and methods.

Data and clients are made in `jaxfed.config.data`. The checks of a config import this room; it imports no
check.
"""
