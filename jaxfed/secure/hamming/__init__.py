"""SecureHamming (line 5 of XCLP's Algorithm 1): distances of two clients' codes, opened to the server.

Each protocol is one file, with its algebra in a second one. `pair` has what the protocols of two clients
share. `matrix` runs any protocol over all pairs.
"""
