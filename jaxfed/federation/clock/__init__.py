"""Simulated time: speeds and availability of clients, rounds with a deadline, asynchronous arrivals.

    settings    `Clock`
    clients     how long a client takes, and when it is available
    schedule    the clients that count in each round, and the second at which it ends

This package has no models and no data, only client numbers and seconds. An experiment attaches it to its
rounds by `schedule_of`; the asynchronous method is `jaxfed.algorithms.fedbuff`.
"""
