"""Checks of a config before anything is computed: values, combinations, keys without effect, its fingerprint.

Checks that need the examples stand in `jaxfed.config.data.feasibility`. Experiments import this room.
"""
