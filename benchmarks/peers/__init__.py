"""The experiment of `launch.bench --kernel=experiment` as users of other frameworks write it, one file each.

    python -m benchmarks.peers.played NAME FOLDER

plays it in a separate process. Nothing of jaxfed is imported here: a peer's time includes its own imports
only.
"""
