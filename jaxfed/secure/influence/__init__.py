"""Line 12 of XCLP's Algorithm 1: messages of the server from which a client propagates its own labels.

The paper sends columns (`columns`). The alternative is oblivious transfer of the labels (`transfer`).
"""
