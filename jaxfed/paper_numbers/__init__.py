"""Results that the papers print, for orientation beside one's own: theirs are on other data.

A paper is one file; `table` says what a table is. A config names the one that it is modeled on by its key
`paper_table`, such as "xclp/1".
"""

from jaxfed.errors import UsageError
from jaxfed.paper_numbers import fedct, protofssl, xclp
from jaxfed.paper_numbers.table import PaperTable

PAPER_TABLES: dict[str, PaperTable] = {**xclp.TABLES, **protofssl.TABLES, **fedct.TABLES}


def paper_table(name: str) -> PaperTable:
    """The paper's table that a config names by `paper_table`."""
    if name not in PAPER_TABLES:
        known = ", ".join(PAPER_TABLES)
        raise UsageError(f"paper_table: {name!r} is no table known here; known are {known}")
    return PAPER_TABLES[name]
