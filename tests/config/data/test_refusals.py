"""What a data set cannot give to a config: one line, before any example is preprocessed.

`refusals.txt` is the table: another refusal is one row.
"""

import ast
from pathlib import Path

import pytest
from small_simulations import simulation

from jaxfed.errors import UsageError

# Arguments of `simulation`: examples to test on, and of each class.
SETS = {
    "set": {"num_test": 0},
    "tested": {"num_test": 30},
    "uneven": {"num_test": 30, "sizes": (30, 50, 40), "federation.test": "central"},
    "at server": {"num_test": 30, "federation.labels_at": "server", "federation.test": "central"},
    "one class": {"num_test": 0, "sizes": (60, 0, 0)},
}
TABLE = Path(__file__).with_name("refusals.txt").read_text().splitlines()[1:]


def value_of(text):
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@pytest.mark.parametrize("row", TABLE)
def test_one_line_says_what_is_wrong(row, tmp_path):
    kind, overrides, words = (cell.strip() for cell in row.split("|"))
    keys = dict(text.split("=") for text in filter(None, overrides.split(";")))
    with pytest.raises(UsageError) as caught:
        simulation(tmp_path, **SETS[kind], **{key: value_of(v) for key, v in keys.items()}).warn()
    line, place = str(caught.value), 0
    assert "\n" not in line
    for word in words.split(" ; "):
        assert word.strip() in line[place:], line
        place = line.index(word.strip(), place)
