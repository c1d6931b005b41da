"""Simulated time: availability and speeds of clients, rounds with a deadline, asynchronous arrivals.

This package has no models and no data, only client numbers and seconds. `jaxfed.federation.rounds` runs the
rounds of a schedule.
"""
