"""SecureRowSums (line 14 of XCLP's Algorithm 1): every client gets its rows of a sum, the server nothing.

After a dropout `masked` starts again without the client, and `double_masks` continue, among all clients or
among many with a few neighbors each. Both use `masked_rows`.
"""
