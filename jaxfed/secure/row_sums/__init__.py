"""SecureRowSums (line 14 of XCLP's Algorithm 1): every client gets its rows of a sum, the server nothing.

After a dropout `masked` starts again without the client, and `resilient` continues; `sparse` does so among
many clients, each with a few neighbors. All use `mask_streams` on the rows of a round's `participants`.
"""
