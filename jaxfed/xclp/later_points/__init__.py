"""Labels for points that come after a labeling, from its artifacts, without another graph.

In the clear and through the labeling's session. It reads `jaxfed.xclp.result`, not the algorithm.
"""
