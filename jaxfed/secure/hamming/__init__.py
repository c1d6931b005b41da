"""SecureHamming (line 5 of XCLP's Algorithm 1): distances of two clients' codes, opened to the server.

One protocol a file, the paper's own versions beside them, its algebra apart. `pair` is what protocols of
two clients have in common, `matrix` runs any of them over all pairs.
"""
