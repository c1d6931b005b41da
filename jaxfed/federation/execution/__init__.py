"""Execution of a cohort's clients: strategies, chunk sizes under a memory limit, cached results.

It changes speed and memory, never results beyond rounding. `settings` has `Execution` and `HERE`.
"""
