"""Gains of a sweep's main method over each other method, for every setting, with counts of wins."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxfed.experiment.store.records import Measurement, ordered_methods
from jaxfed.reports.tables.comparison import (
    LEAST_REPEATS,
    main_and_baseline,
    paired_difference,
    standard_error,
)
from jaxfed.reports.tables.display_names import (
    difference_text,
    metric_label,
    setting_labels,
    setting_text,
)
from jaxfed.reports.tables.method_names import method_names
from jaxfed.reports.tables.tables import Cell, Row, Table
from jaxfed.reports.tables.tested_rows import is_ahead_on_other_rows

_CAPTION = (
    "Differences in percentage points, paired by seed: mean ± standard error (s / √n; none for one seed). "
    "Bold, from three repeats on: ahead by more than two of them, and in 97.5 % of the draws of a bootstrap "
    "over test rows. The last lines count the settings that are ahead, and behind, by more than two; "
    "others are level. "
)


def gains_table(
    name: str, title: str, keys: Sequence[str], rows: Sequence[Row], metric: str
) -> Table | None:
    """Return MAIN minus every other method; None with fewer than two others or without one main method.

    Arguments as for `jaxfed.reports.tables.tables.settings_table`; rows without results are omitted.
    """
    rows = [row for row in rows if row.run is not None and row.run.finished]
    runs = [row.run for row in rows if row.run is not None]
    ordered = ordered_methods(runs)
    main, _ = main_and_baseline(runs, ordered)
    others = [method for method in ordered if method != main]
    if not main or len(others) < 2:
        return None
    names = method_names(runs)
    gained: dict[str, list[Measurement | None]] = {
        other: [paired_difference(run.results, main, other, metric) for run in runs]
        for other in others
    }
    if not any(map(any, gained.values())):
        return None
    lines = [
        (
            *(
                Cell(setting_text(value, key, names))
                for key, value in zip(keys, row.values, strict=True)
            ),
            *(
                _cell(gained[other][place], runs[place].results, (main, other, metric))
                for other in others
            ),
        )
        for place, row in enumerate(rows)
    ]
    blank = [Cell("")] * (len(keys) - 1)
    for word, sign in (("ahead", 1), ("behind", -1)):
        counts = [Cell(_count(gained[other], sign)) for other in others]
        lines.append((Cell(word), *blank, *counts))
    label = metric_label(metric)
    return Table(
        name=name,
        title=f"{title}: what {names.get(main, main)} gains in {label[:1].lower()}{label[1:]}",
        columns=(*setting_labels(keys), *(f"over {names[other]}" for other in others)),
        rows=tuple(lines),
        num_settings=len(keys),
        caption=_CAPTION.strip(),
        records=tuple(
            _record(dict(zip(keys, row.values, strict=True)), main, other, metric, gain)
            for place, row in enumerate(rows)
            for other in others
            if (gain := gained[other][place]) is not None
        ),
    )


def _sign(difference: Measurement) -> int:
    """Return 1 (ahead) or -1 (behind) if the difference exceeds two standard errors, else 0."""
    clear = abs(difference.mean) > 2 * standard_error(difference)
    return int(clear) * (1 if difference.mean > 0 else -1)


def _cell(
    difference: Measurement | None,
    results: Mapping[str, Mapping[str, Measurement]],
    compared: tuple[str, str, str],
) -> Cell:
    if difference is None:
        return Cell("–")
    main, other, metric = compared
    std = None if difference.std is None else standard_error(difference)
    is_ahead = (
        _sign(difference) > 0
        and len(difference.values) >= LEAST_REPEATS
        and is_ahead_on_other_rows(results[main][metric], results[other][metric], metric)
    )
    return Cell(difference_text(difference._replace(std=std)), is_ahead)


def _count(differences: Sequence[Measurement | None], sign: int) -> str:
    there = [difference for difference in differences if difference is not None]
    return f"{sum(_sign(difference) == sign for difference in there)} of {len(there)}"


def _record(
    settings: dict[str, Any], main: str, other: str, metric: str, gain: Measurement
) -> dict[str, Any]:
    return {
        **{key: setting_text(value) for key, value in settings.items()},
        "algorithm": main,
        "over": other,
        "metric": metric,
        "mean": gain.mean,
        "standard_error": None if gain.std is None else standard_error(gain),
        "num_repeats": len(gain.values),
    }
