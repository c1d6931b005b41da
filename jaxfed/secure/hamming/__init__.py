"""SecureHamming (line 5 of XCLP's Algorithm 1): distances of two clients' codes, opened to the server.

Each protocol is one file, with its algebra in a second one. `pair` is the common part of protocols between
two clients. `matrix` runs any protocol over all pairs.
"""
