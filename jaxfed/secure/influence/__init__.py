"""Line 12 of XCLP's Algorithm 1: what the server sends so that a client can propagate its own labels.

As the paper has it (`columns`), or by oblivious transfer of the labels (`transfer`).
"""
