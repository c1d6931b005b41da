"""The steps of Algorithm 1, one to three lines of it a file: client, server and cross steps.

Nothing here runs more than its lines: `jaxfed.xclp.algorithm` composes them, the other rooms reuse them.
"""
