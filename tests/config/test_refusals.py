"""What a config cannot be: one line that names the key, the value, what is wrong and what to write.

`refusals.txt` is the table: another refusal is one row.
"""

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from jaxfed.config import file
from jaxfed.config.check import check
from jaxfed.config.reading import opened
from jaxfed.errors import UsageError

TABLE = Path(__file__).with_name("refusals.txt").read_text().splitlines()


@pytest.mark.parametrize("row", [row for row in TABLE if " | " in row and row[0] != "#"])
def test_one_line_says_what_is_wrong(row):
    config, overrides, words = (cell.strip() for cell in row.split("|"))
    overrides = [*filter(None, overrides.split(";"))]
    with pytest.raises(UsageError) as caught:
        opened(config, overrides)
    line = str(caught.value)
    assert "\n" not in line
    place = 0
    for word in words.split(" ; "):
        assert word.strip() in line[place:], line
        place = line.index(word.strip(), place)


def without(section):
    def change(config):
        *parents, name = section.split(".")
        del (config[parents[0]] if parents else config)[name]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.update({"alpha": 0.5}), "config.alpha: unknown key"),
        (lambda config: config.client_knn.update({"k": 3}), "config.client_knn.k: unknown key"),
        (lambda config: config.update({"rounds": 2.0}), "config.rounds=2.0"),
        (lambda config: config.update({"rounds": True}), "config.rounds=True"),
        (
            lambda config: config.xclp.update({"alpha": "high"}),
            "config.xclp.alpha='high': use numb",
        ),
        (lambda config: config.xclp.update({"num_bits": 64.0}), "config.xclp.num_bits=64.0: use"),
        (lambda config: config.xclp.update({"select": 3}), "config.xclp.select="),
        (lambda config: config.xclp.update({"select": [["alpha"]]}), "config.xclp.select="),
        (lambda config: config.pooled_lp.update({"alpha": None}), "config.pooled_lp.alpha=None"),
        (without("rounds"), "config.rounds: missing"),
        (without("dataset"), "config.dataset.name: missing"),
        (without("xclp"), "config.xclp: missing"),
        (without("selection.candidates"), "config.selection.candidates: missing"),
    ],
)
def test_a_config_file_can_be_wrong_too(change, words):
    config = ConfigDict(file.load("xclp_digits").to_dict(), type_safe=False)
    change(config)
    with pytest.raises(UsageError) as caught:
        check(config)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
