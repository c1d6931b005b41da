"""docs/threat-model.md against the code: byte counts, and that the tests it names are there."""

import math
import re

import message_sizes
import pytest
from threat_model import ROOT, cited_tests, table, uncited

from jaxfed.federation.communication import label_bytes

N, L, P, C = 500, 4096, 5, 10  # points a client, bits, clients, classes
U = 10_000  # public examples


def formula(text, **more):
    """A formula of the tables as a number."""
    names = {"n_j": N, "n_k": N, "L": L, "S": 170, "w": L.bit_length(), "p": P, "n": P * N, "C": C}
    names |= more
    spaced = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text)
    allowed = {"ceil": math.ceil, **names}
    return eval(spaced.replace("ceil *", "ceil"), {"__builtins__": {}}, allowed)


def masked_bytes(num_first, num_second, num_bits):
    points = [message_sizes.hidden_points(n, num_bits) for n in (num_first, num_second)]
    return {"all": sum(points) + message_sizes.hidden_shares(num_first, num_second, num_bits)}


MESSAGE_BYTES = {
    "ot": message_sizes.transfers,
    "phe": message_sizes.encryptions,
    "masked": masked_bytes,
}
NUMBER_OF_Z_L, CIPHERTEXT = math.log2(L) / 8, 512
PAPER_BYTES = {
    "ot": (N * N * L + 2 * N * N) * NUMBER_OF_Z_L,
    "phe": (N * L + N * N) * CIPHERTEXT + 2 * N * N * NUMBER_OF_Z_L,
}


@pytest.mark.parametrize("row", table("hamming"), ids=lambda row: row[0])
def test_bytes_of_distances(row):
    backend, _, paper, ours, ours_bytes = row
    sent = sum(MESSAGE_BYTES[backend](N, N, L).values())
    assert float(ours_bytes) == round(sent / N**2, 1)
    counted = formula(ours.removesuffix(", rounded up"))
    assert 0 <= sent - counted <= (0 if backend != "masked" else 10**4)
    if backend != "masked":
        expected = PAPER_BYTES[backend] / N**2
        assert float(paper) == pytest.approx(expected, abs=0.05)


def test_all_backends_are_in_the_table():
    assert {row[0] for row in table("hamming")} == MESSAGE_BYTES.keys()


@pytest.mark.parametrize("row", table("row sums"), ids=lambda row: row[0])
def test_bytes_of_row_sums(row):
    message, counts, paper, ours, ours_bytes = row
    kind = {"uploads": "upload"}.get(message, message)
    sent = message_sizes.single_masks([N] * P, C)[kind]
    assert int(ours_bytes) == sent == formula(ours)
    numbers = 0 if counts == "none" else formula(counts.removesuffix(" numbers"))
    assert int(paper) == 8 * numbers


@pytest.mark.parametrize("row", table("votes"), ids=lambda row: row[0])
def test_bytes_of_votes(row):
    message, _, ours, ours_bytes = row
    sent = {"votes": P * label_bytes(U, C), **message_sizes.votes(P, U, C)}
    names = {"U": U, "b": math.ceil(math.log2(C)), "S": math.floor(64 / math.log2(P + 1))}
    assert int(ours_bytes) == sent[message] == formula(ours, **names)


@pytest.mark.parametrize("row", table("influence"), ids=lambda row: row[0])
def test_bytes_of_columns(row):
    """50 labels a client."""
    kind, _, num_bytes = row
    assert int(num_bytes) == P * {"positions": 4 * 50, "influence_columns": 4 * P * N * 50}[kind]


def test_bytes_of_double_masks():
    """Beyond the uploads and sums; the start is 4 bytes longer a client."""
    sent = message_sizes.double_masks([N] * P, C, range(P))
    single = message_sizes.single_masks([N] * P, C)
    more = 132 * P * (P - 1) + 66 * P**2 + 32 * P + 32 * P**2 + 8 * P + 4 * P**2
    assert sum(sent.values()) - sum(single.values()) == more + 4 * P
    signed = message_sizes.double_masks([N] * P, C, range(P), signed=True)
    of_signatures = 64 * P * (P - 1) + 64 * P + 68 * P**2
    assert sum(signed.values()) - sum(sent.values()) == of_signatures


def test_tests_that_are_named_exist():
    named = cited_tests()
    assert len(named) > 20
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^(def {test}\(|{test} = )", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_statement_cites_a_test():
    assert uncited("threat-model") == uncited("threat-model-network", r"`test_\w+`") == []
