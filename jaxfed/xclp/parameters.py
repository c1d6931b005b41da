"""What defines one labeling: `Propagation` over any graph, `Parameters` of XCLP, which estimates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.rules import Rule, at_least, between, check_values, one_of
from jaxfed.secure.primitives.key_sizes import KEY_BITS
from jaxfed.xclp import candidates, departures
from jaxfed.xclp.calibration import CONFIDENCES
from jaxfed.xclp.cross_steps import HAMMING, NEIGHBORS, PROJECTIONS, ROW_SUMS
from jaxfed.xclp.influence import INFLUENCE
from jaxfed.xclp.label_matrix import LABEL_MATRICES

_SEED_BITS = 256
_EPSILON = Rule(float, "finite numbers from 0 (no noise) on", lambda epsilon: 0 <= epsilon < np.inf)

# Labels that go less far than rounding are none, and float32 has no number between 0.99999994 and 1.
_ALPHA = Rule(float, "numbers from 0.0001 to 0.9999999", lambda alpha: 1e-4 <= alpha <= 0.9999999)

_OF_PROPAGATION = {
    "num_classes": at_least(1),
    "num_neighbors": at_least(1),
    "alpha": _ALPHA,
    # Beyond it a neighbor at cosine 0.4 has no weight in float32, and a graph falls to pieces.
    "similarity_power": Rule(float, "numbers above 0, up to 100", lambda power: 0 < power <= 100),
    "label_matrix": one_of(LABEL_MATRICES),
    "client_prior": between(0, 10, closed=True),
    "select_measure": one_of(candidates.MEASURES),
    "confidence": one_of(CONFIDENCES),
    # From some 0.1 on labels change.
    "tolerance": Rule(
        float, "numbers above 0, up to 0.01", lambda tolerance: 0 < tolerance <= 0.01
    ),
    "max_steps": at_least(1),
}
_OF_XCLP = {
    "projection": one_of(PROJECTIONS),
    "hamming": one_of(HAMMING),
    "neighbors": one_of(NEIGHBORS),
    "row_sums": one_of(ROW_SUMS),
    "influence": one_of(INFLUENCE),
    "num_bits": Rule(int, "multiples of 32", lambda bits: bits >= 32 and bits % 32 == 0),
    "key_bits": Rule(int, " and ".join(map(str, KEY_BITS)), lambda bits: bits in KEY_BITS),
    "seed": Rule(int, f"0 to 2^{_SEED_BITS} - 1", lambda seed: 0 <= seed < 2**_SEED_BITS),
    "bit_epsilon": _EPSILON,
    "label_epsilon": _EPSILON,
}


@dataclass(frozen=True)
class Propagation:
    """Labels over a graph of nearest neighbors (lines 7, 8 and 15 of Algorithm 1).

    Attributes:
        num_classes: C.
        num_neighbors: k, edges each point proposes.
        self_edges: line 7 as printed: each row's k largest entries are its own, cos(0) = 1, and those of
            its k - 1 nearest others. Off: of its k nearest others, as in the authors' code.
        alpha: how far labels travel, 0.0001 to 0.9999999. "auto", in Python only, is 0.99 with "alpha" in
            `select`.
        similarity_power: exponent on edge weights, up to 100; 3 in the authors' code.
        label_matrix: what is propagated, of `LABEL_MATRICES` (`jaxfed.xclp.label_matrix`): "plain" in the
            paper, "class_balanced" in the authors' code.
        client_prior: beta, how much a client's own label frequencies weigh its scores
            (`jaxfed.xclp.client_prior`); 0 = not at all. Where a client is alone they are the cohort's.
        select: settings to be chosen by leave-one-out, starting from the given ones: "KEY" or
            "KEY:VALUE:..." (`jaxfed.xclp.candidates`, `jaxfed.xclp.selection`).
        select_measure: "accuracy", the share of labels that come back, or "balanced_accuracy", its mean over
            classes: where classes are unequal the first favors the larger ones.
        confidence: "entropy", line 16; "calibrated", the probability that the label is right, by
            leave-one-out (`jaxfed.xclp.calibration`).
        relative_confidence: divide confidences by the largest.
        tolerance: relative residual at which a column of the linear system is solved, up to 0.01.
        max_steps: conjugate-gradient steps at most; a column that needs more, of the labeling or of
            leave-one-out, is warned of.
    """

    rules: ClassVar[dict[str, Rule]] = _OF_PROPAGATION

    num_classes: int
    num_neighbors: int = 10
    self_edges: bool = False
    alpha: float = 0.99
    similarity_power: float = 1.0
    label_matrix: str = "plain"
    client_prior: float = 0.0
    select: Sequence[str] = ()
    select_measure: str = "accuracy"
    confidence: str = "entropy"
    relative_confidence: bool = False
    tolerance: float = 1e-6
    max_steps: int = 1000

    def __post_init__(self) -> None:
        """Reject what has no meaning, with one line that names it."""
        select = candidates.parsed(self.select, self.selectable)
        object.__setattr__(self, "select", tuple(self.select))
        if isinstance(self.alpha, str) and self.alpha == "auto":
            object.__setattr__(self, "alpha", Propagation.alpha)
            if "alpha" not in select:
                object.__setattr__(self, "select", ("alpha", *self.select))
        check_values("xclp", _OF_PROPAGATION, vars(self))
        rules = {**_OF_PROPAGATION, **_OF_XCLP}
        for key, values in select.items():
            for value in values:
                check_values("xclp.select", {key: rules[key]}, {key: value})

        if self.relative_confidence and self.confidence != "entropy":
            raise UsageError(
                f"xclp.relative_confidence=True: allowed with confidence='entropy', not {self.confidence!r}"
            )

    @property
    def asks_labels(self) -> bool:
        """Whether anything is chosen by leave-one-out before the labeling: settings, or a sharpness."""
        return bool(self.select) or self.confidence == "calibrated"

    @property
    def needs_class_counts(self) -> bool:
        """Whether scores are made with the cohort's numbers of labels of each class."""
        return self.label_matrix != "plain" or self.client_prior > 0

    @property
    def selectable(self) -> tuple[str, ...]:
        """Keys that `select` may name."""
        return tuple(key for key in candidates.CANDIDATES if hasattr(self, key))


@dataclass(frozen=True)
class Parameters(Propagation):
    """What defines one XCLP labeling, over all points of a cohort.

    Attributes:
        num_bits: L, the LSH dimension; a multiple of 32.
        seed: the seed s of line 1 of a simulation, from which all clients draw the same Pi; 0 to 2^256 - 1,
            every bit of which counts, though the generator that it starts has 64.
        projection: where Pi comes from, a key of `PROJECTIONS`. "seed": from `seed`, so that the same seed
            gives the same labels, bit for bit; it is as secret as the experiment's config.
            "group_secret": from the 256 bits that the clients of a session share
            and the server does not have, drawn by the operating system; every run has another Pi, and
            labels that differ as they do between seeds. Only with a protocol in `hamming`.
        hamming: protocol of line 5, a key of `HAMMING`.
        neighbors: "exact", or "approximate": who is near whom is looked for, not by comparing all pairs but
            by `jaxfed.kernels.nn_descent`, in time that grows with n instead of n^2; some are missed, and
            labels differ a little. Only with `hamming="plaintext"`, where the server has the codes
            either way: a protocol shows it the distances, and whom to compare would be told by them.
        key_bits: size of Paillier's keys, 2048 or 3072; only read with `hamming="phe"`.
        row_sums: protocol of line 14, a key of `ROW_SUMS`.
        influence: "labels" or "columns", how lines 10 to 13 are computed (`jaxfed.xclp.influence`).
        bit_epsilon: eps of randomized response on every bit of the codes; 0 = none.
        label_epsilon: eps of randomized response on every label; 0 = none. Noise is the operating
            system's where a step is a protocol, else it is drawn from `seed`.
        presence: which clients leave, and at which stage, where steps are protocols: "CLIENT@STAGE" or
            "SHARE%@STAGE" (`jaxfed.xclp.departures`).

    Of what propagation is given, `label_matrix` and `client_prior` go by the cohort's labels. But for "plain"
    without a prior the clients learn the cohort's number of each class; the server learns the numbers where
    `row_sums` is plaintext. `relative_confidence` goes by the cohort's largest: the server
    learns every client's largest one, the clients the cohort's. `select` and `confidence="calibrated"` need
    leave-one-out: the clients learn the numbers of each class in any case, how strongly each label of their
    own stays where it is, and what was chosen; the server how many labels come back with each setting, and
    how likely they are, in sum over the clients, of every client where `row_sums` is plaintext. With
    `select_measure="balanced_accuracy"` it learns these numbers by class, and how many labels of each class
    the cohort has.
    """

    rules: ClassVar[dict[str, Rule]] = {**_OF_PROPAGATION, **_OF_XCLP}

    num_bits: int = 4096
    seed: int = 0
    projection: str = "seed"
    hamming: str = "plaintext"
    neighbors: str = "exact"
    key_bits: int = 2048
    row_sums: str = "plaintext"
    influence: str = "labels"
    bit_epsilon: float = 0.0
    label_epsilon: float = 0.0
    presence: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Reject what has no meaning, with one line that names it."""
        super().__post_init__()
        check_values("xclp", _OF_XCLP, vars(self))
        if self.projection == "group_secret" and self.hamming == "plaintext":
            raise UsageError(
                "xclp.projection='group_secret': allowed with a protocol in xclp.hamming, which is "
                "'plaintext': nobody has a secret from the server then"
            )
        if self.neighbors != "exact" and self.hamming != "plaintext":
            raise UsageError(
                f"xclp.neighbors={self.neighbors!r}: allowed with xclp.hamming='plaintext', not "
                f"{self.hamming!r}: a protocol compares all pairs"
            )
        self._check_presence()

    @property
    def has_session(self) -> bool:
        """Whether a step is a protocol, so that the parties have keys and exchange messages."""
        return self.hamming != "plaintext" or self.row_sums != "plaintext"

    def _check_presence(self) -> None:
        """Who is to leave at a stage needs that the run has this stage."""
        is_there = {
            "setup": self.has_session,
            "hamming": self.hamming != "plaintext",
            "influence": self.row_sums != "plaintext"
            or (self.has_session and self.influence == "columns"),
            "row_sums": self.row_sums != "plaintext",
            "sums": self.row_sums != "plaintext",
            "confidence": self.has_session and self.relative_confidence,
        }
        for departure in departures.parsed(self.presence):
            if not is_there[departure.stage]:
                raise UsageError(
                    f"xclp.presence={self.presence}: stage {departure.stage!r} needs "
                    f"{departures.STAGES[departure.stage].needs}"
                )
