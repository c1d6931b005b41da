"""Sweeps: plan, check and run the points of a config's grid."""
