"""What a config cannot be: one line that names the key, the value, what is wrong and what to write.

`refusals.txt`, `refusals_of_data.txt` and `refusals_of_sets.txt` are the tables: another refusal is one row.
"""

import ast
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from small_simulations import prepared, simulation

from jaxfed.config import file
from jaxfed.config.check import check, opened
from jaxfed.errors import UsageError

# Arguments of `simulation`: examples to test on, and of each class.
SETS = {
    "set": {"num_test": 0},
    "tested": {"num_test": 30},
    "uneven": {"num_test": 30, "sizes": (30, 50, 40), "federation.test": "central"},
    "at server": {"num_test": 30, "federation.labels_at": "server", "federation.test": "central"},
    "one class": {"num_test": 0, "sizes": (60, 0, 0)},
}


def rows(name):
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if " | " in line and line[0] != "#"]


def check_row(row, make):
    config, overrides, words = (cell.strip() for cell in row.split("|"))
    with pytest.raises(UsageError) as caught:
        make(config, [*filter(None, overrides.split(";"))])
    line, place = str(caught.value), 0
    assert "\n" not in line
    for word in words.split(" ; "):
        assert word.strip() in line[place:], line
        place = line.index(word.strip(), place)


@pytest.mark.parametrize("row", rows("refusals.txt"))
def test_one_line_says_what_is_wrong(row):
    check_row(row, opened)


@pytest.mark.parametrize("row", rows("refusals_of_data.txt"))
def test_one_line_says_what_the_data_do_not_suit(row):
    check_row(row, lambda *given: prepared(opened(*given)))


@pytest.mark.parametrize("row", rows("refusals_of_sets.txt"))
def test_one_line_says_what_a_set_does_not_have(row, tmp_path):
    def value_of(text):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return text

    def make(kind, overrides):
        keys = dict(text.split("=") for text in overrides)
        given = {key: value_of(value) for key, value in keys.items()}
        simulation(tmp_path, **SETS[kind], **given).partitioned(0)

    check_row(row, make)


@pytest.mark.parametrize(
    ("section", "content", "words"),
    [
        ("", {"alpha": 0.5}, "config.alpha: unknown key"),
        ("", {"rounds": 2.0}, "config.rounds=2.0"),
        ("", {"rounds": True}, "config.rounds=True"),
        ("", {"mine": {"algorithm": 3}}, "config.mine.algorithm=3"),
        ("client_knn", {"k": 3}, "config.client_knn.k: unknown key"),
        ("xclp", {"alpha": "high"}, "config.xclp.alpha='high': use numb"),
        ("xclp", {"num_bits": 64.0}, "config.xclp.num_bits=64.0: use"),
        ("xclp", {"select": [["alpha"]]}, "config.xclp.select="),
        ("pooled_lp", {"alpha": None}, "config.pooled_lp.alpha=None"),
        ("model", {"num_classes": 3}, "config.model.num_classes: unknown key"),
    ],
)
def test_a_config_file_can_be_wrong_too(section, content, words):
    config = ConfigDict(file.load("xclp_digits").to_dict(), type_safe=False)
    (config[section] if section else config).update(content)
    with pytest.raises(UsageError) as caught:
        check(config)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
