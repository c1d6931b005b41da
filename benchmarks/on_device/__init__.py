"""Pieces of `launch.accelerator`, each run in a separate process on the device.

A piece either measures in Python (`measure`) or is a command with results in files (`command`). Pieces are
independent of each other and of their order; `PIECES` defines it.
"""

from benchmarks.on_device import commands, contests, joint_graph
from benchmarks.on_device.piece import Piece

_ALL = (
    Piece("limits", 60, "the device's own rates", contests.limits),
    *commands.tests(),
    Piece("neighbors", 240, "every way to exact Hamming 10-NN", contests.neighbors),
    Piece(
        "kernels", 400, "lsh, knn, graph, conjugate gradients, against PyTorch", contests.kernels
    ),
    Piece("rounds", 400, "FedAvg rounds, XCLP's A.2 in bfloat16, against PyTorch", contests.rounds),
    Piece(
        "learners", 300, "FedCT's networks and shadow models, against PyTorch", contests.learners
    ),
    Piece("joint_graph", 400, "817,851 synthetic points in one graph", joint_graph.measure),
    *commands.experiments(),
)
PIECES: dict[str, Piece] = {piece.name: piece for piece in _ALL}
