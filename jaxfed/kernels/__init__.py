"""Compiled numerical kernels: functions from arrays to arrays, each with its cost.

They know nothing of clients, rounds, parties, files or flags. Every other wing may import from here.
"""
