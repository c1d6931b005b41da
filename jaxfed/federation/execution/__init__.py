"""Execution of a cohort's clients: strategies, devices, cached results.

It changes speed and memory, never results beyond rounding. `settings` has `Execution` and `HERE`.
"""
