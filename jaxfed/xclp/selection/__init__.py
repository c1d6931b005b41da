"""Settings chosen by leave-one-out over the clients' labels, by steps of Algorithm 1 at labeled points."""
