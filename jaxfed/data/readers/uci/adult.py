"""Adult: does a person earn more than $50,000 a year, by the census of 1994?

    ROOT/adult/adult.data, adult.test    32,561 and 16,281 rows

(B. Becker, R. Kohavi, 1996.) The coding is that of FedCT's code: 12 numbers, then a one-hot code of 14
occupations.

    age, class of work, census weight, years of education, marital status, relationship, race, sex,
    capital gain, capital loss, hours a week, country
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxfed.data.dataset import Dataset
from jaxfed.data.readers.table_encoder import Column, TableEncoder
from jaxfed.data.readers.uci.original import cells, check_count, codes, found, numbers

ORIGIN = "https://archive.ics.uci.edu/dataset/2/adult"
CLASSES = ("<=50K", ">50K")
_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)


def _numbered(first: int, *kinds: str) -> dict[str, int]:
    return {kind: first + number for number, kind in enumerate(kinds)}


# FedCT replaces a missing value ("?") by the most frequent one, hard-coded here.
_CODES: Mapping[str, Mapping[str, int]] = {
    "workclass": {
        "?": 1,
        **_numbered(1, "Private", "State-gov", "Federal-gov", "Self-emp-not-inc", "Self-emp-inc"),
        **_numbered(6, "Local-gov", "Without-pay", "Never-worked"),
    },
    "marital-status": {
        **_numbered(0, "Widowed", "Divorced", "Separated", "Never-married"),
        **_numbered(4, "Married-civ-spouse", "Married-spouse-absent", "Married-AF-spouse"),
    },
    "relationship": {
        **dict.fromkeys(("Not-in-family", "Unmarried", "Own-child", "Other-relative"), 0),
        **dict.fromkeys(("Husband", "Wife"), 1),
    },
    # FedCT's code treats "Other" as missing: the most frequent one.
    "race": _numbered(0, "White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo")
    | {"Other": 0},
    "sex": _numbered(0, "Female", "Male"),
    "income": _numbered(0, *CLASSES),
}
_OCCUPATIONS = (
    *("Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing"),
    *("Handlers-cleaners", "Machine-op-inspct", "Other-service", "Priv-house-serv"),
    *("Prof-specialty", "Protective-serv", "Sales", "Tech-support", "Transport-moving"),
)
_MOST_FREQUENT_OCCUPATION = "Prof-specialty"
_PLAIN = tuple(  # columns that become one number each
    name for name in _COLUMNS if name not in ("education", "occupation", "native-country", "income")
)
_HOME = ("United-States", "?")
_TOP_CODES = {"capital-gain": 99_999, "hours-per-week": 99}  # values that mean "this much or more"


def read(folder: Path) -> Dataset:
    """float32 [32561, 26] and [16281, 26], classes 0 (up to $50,000) and 1; not scaled.

    A capital gain of 99,999 and 99 hours a week, which mean this much or more, are replaced by the mean of
    their column in adult.data. FedCT's code uses the mean over all rows, test rows included, and its own
    split of all rows. `dataset.pooled` makes such a split; some rows behind the two means are then test rows.

    Raises:
        UsageError: a file is missing or incomplete, or has a value without a code.
    """
    train, test = (found(folder, [name], ORIGIN) for name in ("adult.data", "adult.test"))
    texts = [cells(file, len(_COLUMNS)) for file in (train, test)]
    for file, rows in zip((train, test), texts, strict=True):
        check_count(file, len(rows))
    means = {
        column: float(numbers(train, texts[0][:, _COLUMNS.index(column)]).mean())
        for column in _TOP_CODES
    }
    (x, y), (x_test, y_test) = (
        _coded(file, rows, means) for file, rows in zip((train, test), texts, strict=True)
    )
    return Dataset("adult", x, y, x_test, y_test, 2, CLASSES, encoder=_encoder(means))


def _encoder(means: Mapping[str, float]) -> TableEncoder:
    """The coding of `_coded`, for other rows."""

    def column(name: str) -> Column:
        if name in _CODES:
            return Column(name, tuple(_CODES[name]), tuple(_CODES[name].values()))
        if name in _TOP_CODES:
            return Column(name, replaced=((float(_TOP_CODES[name]), means[name]),))
        return Column(name)

    home = Column("native-country", _HOME, (1, 1), other=0)
    places = _places_of_occupations()
    occupation = Column("occupation", tuple(places), tuple(places.values()), len(_OCCUPATIONS))
    columns = (*map(column, _PLAIN), home, occupation)
    return TableEncoder(columns, _COLUMNS, "income")


def _places_of_occupations() -> dict[str, int]:
    return {"?": _OCCUPATIONS.index(_MOST_FREQUENT_OCCUPATION), **_numbered(0, *_OCCUPATIONS)}


def _coded(
    file: Path, rows: np.ndarray, means: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n, 26] and int32 [n]."""
    column = dict(zip(_COLUMNS, rows.T, strict=True))
    column["income"] = np.char.rstrip(column["income"], ".")  # the test file has dots

    def coded(name: str) -> np.ndarray:
        if name in _CODES:
            return codes(file, name, column[name], _CODES[name])
        values = numbers(file, column[name])
        if name not in _TOP_CODES:
            return values
        return np.where(values == _TOP_CODES[name], means[name], values)

    features = [coded(name) for name in _PLAIN]
    features.append(np.isin(column["native-country"], _HOME))
    places = _places_of_occupations()
    occupation = np.eye(len(_OCCUPATIONS))[codes(file, "occupation", column["occupation"], places)]
    x = np.column_stack([*features, occupation]).astype(np.float32)
    return x, coded("income").astype(np.int32)
