"""Timing of a task beside its peers: contests, the machine's limits, patience, records."""
