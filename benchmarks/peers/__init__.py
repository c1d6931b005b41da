"""The experiment of `launch.bench --kernel=experiment` as users of other frameworks write it, a file each.

    python -m benchmarks.peers.played NAME FOLDER

in a process of its own, as a user starts one. Nothing of jaxfed is imported here: a peer pays for its own
imports, and for no one else's.
"""
