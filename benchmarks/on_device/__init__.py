"""Pieces of `launch.accelerator`, each run in a separate process on the device.

A piece either measures in Python (`measure`) or is a command with results in files (`command`). Pieces are
independent of each other and of their order; `PIECES` defines it.
"""

from benchmarks.on_device import commands, contests, joint_graph
from benchmarks.on_device.piece import Piece

_ALL = (
    Piece(
        "limits",
        60,
        "the device's own rates",
        measure=contests.limits,
        small="device and versions alone",
    ),
    *commands.tests(),
    Piece(
        "neighbors",
        240,
        "every way to exact Hamming 10-NN",
        measure=contests.neighbors,
        small="every way to exact Hamming 10-NN, of 200 points",
    ),
    Piece(
        "kernels",
        400,
        "lsh, knn beside PyTorch's, graph, conjugate gradients",
        measure=contests.kernels,
        small="lsh, one size",
    ),
    Piece(
        "rounds",
        400,
        "FedAvg rounds, XCLP's A.2 in bfloat16 beside PyTorch's",
        measure=contests.rounds,
        small="one FedAvg round",
    ),
    Piece(
        "learners",
        300,
        "FedCT's networks and shadow models beside PyTorch's",
        measure=contests.learners,
        small="FedCT's networks",
    ),
    Piece(
        "joint_graph",
        400,
        "817,851 synthetic points in one graph",
        measure=joint_graph.measure,
        small="300 synthetic points in one graph",
    ),
    *commands.experiments(),
)
PIECES: dict[str, Piece] = {piece.name: piece for piece in _ALL}
