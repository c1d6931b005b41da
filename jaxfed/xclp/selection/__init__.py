"""Settings chosen by leave-one-out over the clients' labels, before a labeling.

It runs steps of Algorithm 1 at the labeled points. `jaxfed.xclp.algorithm` imports it, not the other way
round.
"""
