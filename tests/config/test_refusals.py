"""What a config cannot be: one line that names the key, the value, what is wrong and what to write.

`refusals.txt` and `refusals_of_data.txt` are the tables: another refusal is one row.
"""

from pathlib import Path

import pytest
from ml_collections import ConfigDict
from small_simulations import prepared

from jaxfed.config import file
from jaxfed.config.check import check
from jaxfed.config.reading import opened
from jaxfed.errors import UsageError


def rows(name):
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if " | " in line and line[0] != "#"]


def check_row(row, make):
    config, overrides, words = (cell.strip() for cell in row.split("|"))
    with pytest.raises(UsageError) as caught:
        make(opened(config, [*filter(None, overrides.split(";"))]))
    line, place = str(caught.value), 0
    assert "\n" not in line
    for word in words.split(" ; "):
        assert word.strip() in line[place:], line
        place = line.index(word.strip(), place)


@pytest.mark.parametrize("row", rows("refusals.txt"))
def test_one_line_says_what_is_wrong(row):
    check_row(row, lambda config: pytest.fail("accepted"))


@pytest.mark.parametrize("row", rows("refusals_of_data.txt"))
def test_one_line_says_what_the_data_do_not_suit(row):
    check_row(row, prepared)


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
