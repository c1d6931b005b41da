"""Simulated time: availability and speeds of clients, rounds with a deadline, asynchronous arrivals.

No model is here and no data, only client numbers and seconds. `jaxfed.federation.rounds` plays a schedule.
"""
