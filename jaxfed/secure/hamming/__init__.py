"""SecureHamming (line 5 of XCLP's Algorithm 1): distances of two clients' codes, opened to the server.

One protocol a file, the paper's own versions beside them; `matrix` runs them over all pairs of clients.
"""
