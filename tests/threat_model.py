"""Reads docs/threat-model.md and docs/protocols.md, so that tests hold their figures and references."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = "\n".join(
    (ROOT / "docs" / f"{page}.md").read_text() for page in ("threat-model", "protocols")
)


def table(name):
    """Rows of the table below <!-- table: name -->, cells without marks of code."""
    below = TEXT.split(f"<!-- table: {name} -->\n", 1)[1].lstrip("\n").split("\n\n", 1)[0]
    rows = [
        [cell.strip().strip("`") for cell in line.strip("| ").split("|")]
        for line in below.splitlines()
    ]
    return rows[2:]


def cited_tests():
    """(file, function) of every test that the pages name."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)


def uncited(page, test=r"`tests/[\w/]+\.py::\w+`"):
    """Statements of a page after which no test is named, but for its assumptions.

    An item or a paragraph ends with tests; a line that ends with a colon has them in what follows. So has a
    table, in each row or in the text around it.
    """
    _, *sections = re.split(r"^#+ (.+)\n", (ROOT / f"docs/{page}.md").read_text(), flags=re.M)
    found = []
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        blocks = re.split(r"\n\n|\n(?=\* |\d\. )", text.strip())
        names = [re.split(test, block) for block in blocks]
        for place, block in enumerate(blocks):
            rows = [line for line in block.splitlines() if line.startswith("|")][2:]
            around = [*names[place + 1 : place + 2], *(names[place - 1 : place] if rows else [])]
            is_shown = len(names[place]) > 1 and not re.search(r"\. [A-Z]", names[place][-1])
            if rows:
                is_shown = len(names[place]) > 1 and all(re.search(test, row) for row in rows)
            is_led = len(names[place]) == 1 and (bool(rows) or block.endswith(":"))
            if (
                title != "Assumptions"
                and not is_shown
                and not (is_led and max(map(len, around), default=0) > 1)
            ):
                found.append(f"{title}: {block}")
    return found
