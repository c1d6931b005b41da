"""Plain-language summary of the information that each party can learn with given settings of XCLP.

`ROWS` is the one source: the lines at the start of a run and the first table of docs/threat-model.md are made
of it. Each row describes one setting that a user chooses; it holds if parties follow the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxfed.xclp.settings.parameters import Parameters


class Row(NamedTuple):
    """Information that one value of one setting reveals to the parties.

    Fields:
        key: of the section `xclp`.
        values: the values that the row describes; empty: all but the default.
        server: the server alone learns this.
        coalition: the server and one client learn this together, in addition to what each learns alone.
        client: a client alone learns this, in addition to the labels and confidences of its own points.
        remedy: the setting to choose instead; empty if there is none better.
        title: the row's setting in the table; empty: its key and values.

    A party's text may join several facts by ", and ". Rows that hold at the same time tell each fact once.
    """

    key: str
    values: tuple[Any, ...]
    server: str = ""
    coalition: str = ""
    client: str = ""
    remedy: str = ""
    title: str = ""

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Return True if these settings of XCLP have a value of the row."""
        value = settings[self.key]
        return value in self.values if self.values else value != getattr(Parameters, self.key)


_CLASS_COUNTS = "the cohort's number of labels of each class"

ROWS = (
    Row(
        "hamming",
        ("plaintext",),
        server="every client's codes",
        coalition="the directions of every client's points",
        remedy="hamming='ot' or 'phe'",
    ),
    Row(
        "hamming",
        ("masked",),
        server="the angles between all points",
        coalition="every client's codes",
        remedy="hamming='ot' or 'phe'",
    ),
    Row(
        "hamming",
        ("ot", "phe"),
        server="the angles between all points",
        coalition="estimates of directions, the better the more points the client has",
    ),
    Row(
        "projection",
        ("seed",),
        coalition="a check of any guessed point, because the hyperplanes follow from the config",
        remedy="projection='group_secret'",
    ),
    Row("projection", ("group_secret",), coalition="the hyperplanes"),
    Row(
        "row_sums",
        ("plaintext",),
        server="every client's labels",
        remedy="row_sums='masked'",
    ),
    Row(
        "row_sums",
        ("masked", "masked_resilient"),
        server="which points have a label, but not the labels",
        coalition="sums over the other clients' labels",
        remedy="row_sums='masked_resilient_signed' if the server may lie about who has left",
    ),
    Row(
        "row_sums",
        ("masked_resilient_signed",),
        server="which points have a label, but not the labels",
        coalition="sums over the other clients' labels",
    ),
    Row(
        "influence",
        ("columns",),
        client="who is near its labeled points, of everybody's points",
    ),
    Row(
        "compared_by",
        ("neighbors",),
        client="which clients may have points near its own, if compared_clients is set",
        remedy="compared_by='random'",
    ),
    Row("compared_by", ("random",)),
    Row("label_matrix", ("class_balanced",), client=_CLASS_COUNTS, remedy="label_matrix='plain'"),
    Row(
        "label_matrix",
        ("degree_balanced",),
        client="the cohort's sum of roots of degrees over the labels of each class",
        remedy="label_matrix='plain'",
    ),
    Row(
        "center",
        (True,),
        server="the mean of all points, and of each client's unless row_sums is a protocol",
        client="the mean of all points",
        remedy="center=False",
    ),
    Row(
        "head",
        ("ridge",),
        server="second moments of the features and their sums by label, and each client's of them, with its "
        "points' answers, unless row_sums is a protocol",
        client="a linear classifier of all points",
        remedy="head='none'",
    ),
    Row(
        "client_prior",
        (),
        client=_CLASS_COUNTS,
        remedy="client_prior=0",
        title="client_prior above 0",
    ),
    Row(
        "relative_confidence",
        (True,),
        server="the largest confidence of each client",
        client="the largest of all confidences",
        remedy="relative_confidence=False",
    ),
)


def lines(settings: Mapping[str, Any]) -> tuple[str, str]:
    """Two lines for a run's start: what these settings of XCLP reveal, and the settings that prevent it."""
    rows = [row for row in ROWS if row.holds(settings)]
    server, coalition, client = (
        ", and ".join(
            dict.fromkeys(fact for text in texts if text for fact in text.split(", and "))
        )
        for texts in (
            [row.server for row in rows],
            [row.coalition for row in rows],
            [row.client for row in rows],
        )
    )
    learned = (
        f"the server learns {server}; together with one client, {coalition}; a client learns "
        f"{client or 'nothing'} beside its own points' labels"
    )
    remedies = [f"xclp.{row.remedy}" for row in rows if row.remedy]
    closing = "; ".join(remedies) if remedies else "no other setting hides more"
    return learned, f"to close it: {closing} (docs/threat-model.md)"


def table() -> list[list[str]]:
    """Cells of the table in docs/threat-model.md, one list per row."""
    return [
        [
            row.title or " or ".join(f"{row.key}={_shown(value)}" for value in row.values),
            *(text or "-" for text in (row.server, row.coalition, row.client, row.remedy)),
        ]
        for row in ROWS
    ]


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
