"""Settings of one labeling: `Propagation` over any graph, and `Parameters` of XCLP, which estimates it.

Exchangeable steps of Algorithm 1 have names, the values that a setting allows. The functions of one table
take the same arguments, so a protocol replaces a plaintext step without a change elsewhere. A function is
imported when a labeling uses it, because only protocols need their packages.

`select` names settings that leave-one-out chooses, and their candidate values:

    ("alpha", "label_matrix")                    every combination of the values in `CANDIDATES`
    ("alpha:0.5:0.9:0.99", "num_neighbors")      these values of alpha instead
    ("alpha", "client_prior")                    and an estimate of the client prior, which has no candidates

`presence` simulates client dropouts during a labeling, by stage (Section 3.3):

    ("3@hamming", "4@row_sums")

Client 3 leaves before it sends anything for SecureHamming, and client 4 before its upload for SecureRowSums
(`jaxfed.secure.session.channel`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Annotated, Any, Literal

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.registry import LazyFactory, Registry
from jaxfed.settings import (
    Allowed,
    Count,
    Described,
    Ge,
    Gt,
    Le,
    Note,
    OneOf,
    advice,
    check,
    check_value,
    is_allowed,
    settings_of,
    when,
)

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Departure, Stage

# (indices, distances) of the nearest points, int32 [n, k], after the clients that take part or have stayed.
Neighbors = tuple[list[int], np.ndarray, np.ndarray]
Counts = Mapping[int, np.ndarray]  # numbers of labels of every client, float32 [t, C]

_PROTOCOLS = ("phe", "ot", "masked")  # functions of `jaxfed.secure.hamming.protocols`


def _table(key: str, **steps: LazyFactory) -> Registry[Any]:
    return Registry(f"xclp.{key}", steps)


def _step(file: str, name: str, **keywords: Any) -> LazyFactory:
    return LazyFactory(f"jaxfed.xclp.steps.{file}", name, keywords)


# Line 3: the source of Pi.
PROJECTIONS: Registry[Callable[..., jax.Array]] = _table(
    "projection",
    seed=_step("codes", "projection_of_seed"),
    group_secret=_step("codes", "projection_of_group_secret"),
)
# Lines 5 and 7: codes of all clients -> `Neighbors`.
HAMMING: Registry[Callable[..., Neighbors]] = _table(
    "hamming",
    plaintext=_step("hamming", "plaintext_hamming"),
    **{name: _step("hamming", "secure_hamming", protocol=name) for name in _PROTOCOLS},
)
# Lines 10 to 13: the server's matrix and the clients' labels -> `Contributions`.
INFLUENCE: Registry[Callable[..., Any]] = _table(
    "influence",
    labels=_step("contributions", "contributions_by_labels"),
    columns=_step("contributions", "contributions_by_columns"),
)
# Line 14: `Contributions` and `Counts` -> each client's rows of the sums, and the summed counts.
ROW_SUMS: Registry[Callable[..., dict[int, tuple[np.ndarray, np.ndarray]]]] = _table(
    "row_sums",
    plaintext=_step("row_sums", "plaintext_row_sums"),
    masked=_step("row_sums", "secure_row_sums"),
    masked_resilient=_step("row_sums", "secure_row_sums", resilient=True),
    masked_resilient_signed=_step("row_sums", "secure_row_sums", resilient=True, signed=True),
)


# As in `jaxfed.xclp.steps.class_scores`; `select` tries the first two where it is given no values.
LABEL_MATRICES = ("plain", "class_balanced", "degree_balanced")
CANDIDATES: dict[str, tuple[Any, ...]] = {
    "alpha": (0.5, 0.8, 0.9, 0.95, 0.99),
    "label_matrix": LABEL_MATRICES[:2],
    "num_neighbors": (5, 10, 20),
    "similarity_power": (1.0, 3.0),
    "num_bits": (1024, 4096),
    # Estimated, not picked: `jaxfed.xclp.selection.choice`.
    "client_prior": (),
    "head": (),
}


def _hit_rate(hits: np.ndarray, counts: np.ndarray) -> float:
    return float(hits.sum() / counts.sum())


def _balanced_hit_rate(hits: np.ndarray, counts: np.ndarray) -> float:
    present = counts > 0
    return float(np.mean(hits[present] / counts[present]))


# Share of labels that leave-one-out recovers, from numbers by class, [C] each, or its mean over the classes
# that have labels.
MEASURES = {"accuracy": _hit_rate, "balanced_accuracy": _balanced_hit_rate}


Entries = Annotated[
    Sequence[str], Described("lists of text, such as ('alpha', 'num_neighbors:5:10')")
]


def candidates_of(entries: Sequence[str], keys: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Parse entries "KEY" or "KEY:VALUE:..." to a mapping from key to values.

    Raises:
        UsageError: not a list of entries, an unknown or repeated key, or a value of the wrong type.
    """
    check_value("select", entries, Entries, owner="xclp")
    candidates: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        key, *texts = str(entry).split(":")
        if key not in keys or key in candidates:
            raise _refused(
                entry,
                f"use each of {', '.join(map(repr, keys))} once, alone or with values as in 'alpha:0.5:0.9'",
            )
        if not CANDIDATES[key]:
            if texts:
                raise _refused(entry, f"use {key!r} alone; leave-one-out estimates it")
            candidates[key] = ()
            continue
        kind = type(CANDIDATES[key][0])
        try:
            candidates[key] = tuple(kind(text) for text in texts) or CANDIDATES[key]
        except ValueError:
            like = f"use {kind.__name__}s as values of {key}, such as {CANDIDATES[key][0]}"
            raise _refused(entry, like) from None
    return candidates


def fits(key: str, select: Sequence[str]) -> bool:
    """True if `select` has this key estimated or chosen."""
    return any(entry.partition(":")[0] == key for entry in select)


def _refused(value: Any, allowed: str, wrong: str = "") -> UsageError:
    return UsageError(wrong, key="select", owner="xclp", value=value, allowed=allowed)


STAGES: dict[str, Stage] = {
    "setup": ("receive", "invite", "a protocol in xclp.hamming or xclp.row_sums"),
    "hamming": ("send", "own", "a protocol in xclp.hamming"),
    "influence": ("send", "positions", "a protocol, and xclp.influence='columns'"),
    "row_sums": ("send", "upload", "a protocol in xclp.row_sums"),
    "sums": ("receive", "sums", "a protocol in xclp.row_sums"),
}

# Smallest alpha of leave-one-out, which subtracts a label's effect at its own point. Below it the rest is
# lost in float32.
_LEFT_OUT_FROM = 0.5
_Epsilon = Annotated[float, Ge(0), Note("0 is no noise")]
_Seed = Annotated[
    Any, Allowed(lambda seed: 0 <= index(seed) < 2**256, "integers from 0 to 2^256 - 1")
]
_Bits = Annotated[int, Allowed(lambda bits: bits >= 32 and bits % 32 == 0, "multiples of 32")]
_Compared = Annotated[
    int, Allowed(lambda clients: clients >= 0 and clients % 4 == 0, "multiples of 4, 0 is all")
]


@dataclass(frozen=True)
class Propagation:
    """Settings of label propagation over a graph of nearest neighbors (lines 7, 8 and 15 of Algorithm 1).

    Attributes:
        select: settings to choose by leave-one-out over the labeled points, each as "KEY", with default
            candidates, or as "KEY:VALUE:...". The value that the key has in the config is a candidate, too.
            "client_prior" takes no candidates: it and `client_prior_labels` are fitted by likelihood. Nor
            does "head" of XCLP: a ridge on the labels must recover about as many as the graph.
        select_measure: quality that `select` compares: "accuracy", the share of labels that leave-one-out
            recovers, or "balanced_accuracy", its mean over classes, for classes of unequal size.
        tolerance: relative residual at which the linear system counts as solved, up to 0.01 (Algorithm 1,
            line 10).
        max_steps: maximum number of conjugate-gradient steps for the linear system. If the labeling or
            leave-one-out needs more, a warning says so (Algorithm 1, line 10).
        num_classes: number of classes C.
        num_neighbors: number k of other points, its nearest, to which each point is linked in the graph
            (Algorithm 1, line 7).
        alpha: reach of labels, 0.01 to 0.9999999: small values keep them near their points, values near 1
            spread them through the graph (Algorithm 1, line 10). `select` and calibrated confidences need 0.5
            or more. In Python, "auto" means 0.99 with "alpha" in `select`.
        similarity_power: exponent on edge weights, up to 100; larger values favor the most similar neighbors.
            It is 1 in the paper and 3 in the authors' code (Algorithm 1, line 7).
        label_matrix: weight of a label: "plain", 1 for each, as in the paper, "class_balanced", 1 divided
            by its class's number of labels, as in the authors' code, or "degree_balanced", 1 divided by the
            sum over its class's labels of the root of their degree, for few labels and alpha near 1; it needs
            plaintext steps (Algorithm 1, line 10).
        client_prior: strength beta with which a client's own label frequencies weight its scores; 0 ignores
            them. `per_client_lp` ignores it (before line 15 of Algorithm 1).
        client_prior_labels: smoothing of a client's label frequencies: the number of labels with which the
            cohort's frequencies are added to its own; 0: the number of classes (before line 15 of
            Algorithm 1).
        confidence: meaning of confidences: "entropy", 1 minus the scaled entropy of a point's scores
            (Algorithm 1, line 16), or "calibrated", the probability that the label is right, estimated by
            leave-one-out.
        relative_confidence: divide all confidences by the largest, as the authors' code does. It needs
            plaintext steps (after line 16 of Algorithm 1).
    """

    select: Entries = field(default=(), kw_only=True)
    select_measure: Annotated[str, OneOf(MEASURES)] = field(default="accuracy", kw_only=True)
    # From about 0.1 on, labels change.
    tolerance: Annotated[float, Gt(0), Le(0.01)] = field(default=1e-6, kw_only=True)
    max_steps: Count = field(default=1000, kw_only=True)
    num_classes: Count
    num_neighbors: Count = 10
    # Below 0.01, scores a few edges from a label vanish in float32, which has no number between 0.99999994
    # and 1.
    alpha: Annotated[float, Ge(0.01), Le(0.9999999)] = 0.99
    # Above it, a neighbor at cosine 0.4 has weight 0 in float32, and the graph falls apart.
    similarity_power: Annotated[float, Gt(0), Le(100)] = 1.0
    label_matrix: Annotated[str, OneOf(LABEL_MATRICES)] = "plain"
    client_prior: Annotated[float, Ge(0), Le(10)] = 0.0
    client_prior_labels: Annotated[float, Ge(0), Le(1e6)] = 0.0
    confidence: Literal["entropy", "calibrated"] = "entropy"
    relative_confidence: bool = False

    def __post_init__(self) -> None:
        """Reject invalid settings with a one-line error that names the setting."""
        select = candidates_of(self.select, self.selectable)
        object.__setattr__(self, "select", tuple(self.select))
        if isinstance(self.alpha, str) and self.alpha == "auto":
            object.__setattr__(self, "alpha", Propagation.alpha)
            if "alpha" not in select:
                object.__setattr__(self, "select", ("alpha", *self.select))
        check(self, "xclp")
        kind: Any = type(self)
        for key, values in select.items():
            hint = settings_of(kind)[key].hint
            for value in values:
                if not is_allowed(value, hint):
                    wrong = f"the value {value!r} of {key} is out of range"
                    raise _refused(self.select, advice(hint), wrong)
        if self.asks_labels:
            self._check_left_out(select.get("alpha", ()))
        if self.relative_confidence and self.confidence != "entropy":
            raise UsageError(
                f"does not go with confidence={self.confidence!r}",
                key="relative_confidence",
                owner="xclp",
                value=True,
                allowed="set confidence='entropy'",
            )

    def _check_left_out(self, others: Sequence[float]) -> None:
        wrong = "leave-one-out is not exact in float32 at an alpha this small"
        allowed = f"use {_LEFT_OUT_FROM} or more"
        if self.alpha < _LEFT_OUT_FROM:
            raise UsageError(wrong, key="alpha", owner="xclp", value=self.alpha, allowed=allowed)
        if others and min(others) < _LEFT_OUT_FROM:
            raise _refused(self.select, allowed, f"alpha {min(others)}: {wrong}")

    @property
    def asks_labels(self) -> bool:
        """True if leave-one-out chooses something before the labeling: settings, or a sharpness."""
        return bool(self.select) or self.confidence == "calibrated"

    @property
    def needs_class_counts(self) -> bool:
        """True if scores depend on the cohort's number of labels of each class."""
        return self.label_matrix != "plain" or self.client_prior > 0

    @property
    def selectable(self) -> tuple[str, ...]:
        """Keys that `select` may name."""
        return tuple(key for key in CANDIDATES if hasattr(self, key))


@dataclass(frozen=True)
class Parameters(Propagation):
    """Settings of one XCLP labeling, over all points of a cohort.

    Attributes:
        num_bits: number of bits L in the code of a point, a multiple of 32. More bits estimate angles better
            and cost more time and memory (Algorithm 1, line 4).
        seed: seed of the random hyperplanes Pi in a simulation, the same at all clients, 0 to 2^256 - 1
            (Algorithm 1, line 1).
        projection: source of the hyperplanes: "seed", the same hyperplanes in every run with that seed, or
            "group_secret", secret bits of the clients, new in every run, which needs a protocol in `hamming`
            (Algorithm 1, line 3).
        hamming: computation of distances between codes: "plaintext" sends the codes to the server. "phe"
            (Paillier encryption), "ot" (oblivious transfer) and "masked" are protocols that show it only the
            distances (Algorithm 1, line 5).
        compared_clients: number of other clients, at most, with whose points a client's points are compared,
            a multiple of 4; 0, or the number of others and more: all. Among many clients, fewer save time and
            bytes, and cost accuracy (Algorithm 1, line 5).
        compared_by: choice of these clients: "random" draws them. "neighbors" draws half of them; the server
            chooses the others by neighbors of neighbors. That suits unlike clients better, and tells a client
            who may have points near its own (`jaxfed.xclp.steps.hamming`; Algorithm 1, line 5).
        key_bits: size of Paillier's keys in bits (Algorithm 1, line 5).
        row_sums: summation of the clients' contributions: "plaintext" shows them to the server, "masked"
            hides them. "masked_resilient" also survives dropouts without a second upload, and
            "masked_resilient_signed" also protects against a server that lies about them (Algorithm 1, line
            14).
        center: subtract the mean of all clients' points from the vectors, a sum that goes as `row_sums` says.
            Codes of vectors without negative entries are nearly alike without it (before Algorithm 1, line
            4).
        head: "ridge" fits a linear head to the labels of the graph and propagates its answers over the graph
            (`jaxfed.xclp.heads`, after Algorithm 1, line 16).
        head_regularization: lambda of the head, on features of unit length and weights of mean 1.
        head_alpha: reach of its answers in the graph, like `alpha`.
        influence: multiplication of the server's matrix with a client's labels: "labels" sends a client
            nothing of the matrix and needs `row_sums="plaintext"`, "columns" sends the columns of its labeled
            points, as in the paper (Algorithm 1, lines 10 to 13).
        bit_epsilon: epsilon of randomized response on every bit of the codes; 0: no noise (before line 5
            of Algorithm 1).
        label_epsilon: epsilon of randomized response on every label; 0: no noise (before line 10 of
            Algorithm 1).
        presence: dropouts to simulate where steps are protocols, as "CLIENT@STAGE"
            (`jaxfed.xclp.settings.parameters`).

    Randomness. All bits of `seed` count, although the generator's key has 64. With `projection="seed"` the
    same seed gives the same labels, bit for bit, and Pi is as secret as the experiment's config. With
    "group_secret", Pi comes from 256 bits that the operating system draws. The clients of a session share
    them, and the server does not have them; labels of two runs differ as they do between seeds. The noise of
    `bit_epsilon` and `label_epsilon` comes from the operating system if a step is a protocol, else from
    `seed`.

    Privacy. `label_matrix` and `client_prior` use the cohort's labels. Except for "plain" without a prior,
    the clients learn the cohort's number of labels of each class; the server learns it if `row_sums` is
    plaintext. `select` and `confidence="calibrated"` need leave-one-out, which
    needs plaintext steps.
    """

    num_bits: _Bits = 4096
    seed: _Seed = 0
    projection: Annotated[str, OneOf(PROJECTIONS)] = "seed"
    hamming: Annotated[str, OneOf(HAMMING)] = "plaintext"
    compared_clients: _Compared = 0
    compared_by: Annotated[Literal["random", "neighbors"], when("compared_clients", Gt(0))] = (
        "random"
    )
    key_bits: Annotated[Literal[2048, 3072], when("hamming", "phe")] = 2048
    row_sums: Annotated[str, OneOf(ROW_SUMS)] = "plaintext"
    center: bool = False
    head: Literal["none", "ridge"] = "none"
    head_regularization: Annotated[float, Gt(0), when("head", "ridge")] = 10.0
    head_alpha: Annotated[float, Ge(0.01), Le(0.9999999), when("head", "ridge")] = 0.8
    influence: Annotated[str, OneOf(INFLUENCE)] = "labels"
    bit_epsilon: _Epsilon = 0.0
    label_epsilon: _Epsilon = 0.0
    presence: Annotated[Sequence[str], Described("a tuple of 'CLIENT@STAGE'")] = ()

    def __post_init__(self) -> None:
        """Reject invalid settings with a one-line error that names the setting."""
        super().__post_init__()
        numbers = ("client_prior", "relative_confidence", "bit_epsilon", "label_epsilon")
        beside_head = [key for key in numbers if getattr(self, key)]  # these do not go with a head
        beside_head += ["select='client_prior'"] * fits("client_prior", self.select)
        beside_head += ["confidence"] * (self.confidence != "entropy")
        for key, is_wrong, why, allowed in (
            (
                "projection",
                self.projection == "group_secret" and self.hamming == "plaintext",
                "with hamming='plaintext' clients have no secret from the server",
                "choose a protocol in hamming",
            ),
            (
                "head",
                (self.head != "none" or fits("head", self.select)) and bool(beside_head),
                f"the head has answers, confidences and sums of its own, without {', '.join(beside_head)}",
                f"leave out {', '.join(beside_head)}, or the head",
            ),
            (
                "row_sums",
                (self.head != "none" or self.center) and self.row_sums == "masked_resilient_signed",
                "sums for the mean and the head are not signed",
                "use 'masked_resilient', or head='none' and center=False",
            ),
            (
                "label_matrix",
                self.label_matrix == "degree_balanced" and self.has_session,
                "the server has degrees, which clients of a protocol do not know",
                "use 'class_balanced', or set hamming='plaintext' and row_sums='plaintext'",
            ),
            (
                "relative_confidence",
                self.relative_confidence and self.has_session,
                "the server would see each client's largest confidence",
                "use False, or set hamming='plaintext' and row_sums='plaintext'",
            ),
            (
                "influence",
                self.influence == "labels" and self.row_sums != "plaintext",
                f"the server would receive the labels that row_sums={self.row_sums!r} hides",
                "set 'columns'",
            ),
            *(
                (
                    key,
                    is_set and self.has_session,
                    "leave-one-out needs codes and labels, which no party of a protocol has together",
                    f"use {allowed}, or set hamming='plaintext' and row_sums='plaintext'",
                )
                for key, is_set, allowed in (
                    ("select", bool(self.select), "()"),
                    ("confidence", self.confidence == "calibrated", "'entropy'"),
                )
            ),
        ):
            if is_wrong:
                value = getattr(self, key)
                raise UsageError(why, key=key, owner="xclp", value=value, allowed=allowed)
        self._check_presence()

    def compares_few(self, num_clients: int) -> bool:
        """True if not all pairs of so many clients are compared."""
        return 0 < self.compared_clients < num_clients - 1

    @property
    def head_sums(self) -> Literal["plaintext", "masked", "masked_resilient"]:
        """Protocol of the sums for `center` and `head`."""
        if self.row_sums == "plaintext":
            return "plaintext"
        return "masked" if self.row_sums == "masked" else "masked_resilient"

    @property
    def has_session(self) -> bool:
        """True if a step is a protocol; the parties then have keys and exchange messages."""
        return self.hamming != "plaintext" or self.row_sums != "plaintext"

    @property
    def departures(self) -> list[Departure]:
        """The entries of `presence`."""
        if not self.presence:
            return []
        from jaxfed.secure.session.channel import departures_of

        return departures_of(self.presence, STAGES, "presence", "xclp")

    def _check_presence(self) -> None:
        has_stage = {
            "setup": self.has_session,
            "hamming": self.hamming != "plaintext",
            "influence": self.has_session and self.influence == "columns",
            "row_sums": self.row_sums != "plaintext",
            "sums": self.row_sums != "plaintext",
        }
        for departure in self.departures:
            if not has_stage[departure.stage]:
                raise UsageError(
                    f"stage {departure.stage!r} needs {STAGES[departure.stage][2]}",
                    key="presence",
                    owner="xclp",
                    value=self.presence,
                )
