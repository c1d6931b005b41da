"""Who talks to whom: keys agreed on, sealed links, one channel, endpoints that count and may drop out.

No protocol of a method is here; those run over the endpoints that a session hands out.
"""
