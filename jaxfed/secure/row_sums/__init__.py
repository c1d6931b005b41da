"""SecureRowSums (line 14 of XCLP's Algorithm 1): every client gets its rows of a sum, the server nothing.

`masked` starts again without who leaves, `resilient` goes on without them. Both are made of `mask_streams`
on the rows of a round's `participants`.
"""
