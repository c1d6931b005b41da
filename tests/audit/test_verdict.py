"""The strongest attack, by halves of the targets; and the mean over repeats."""

import numpy as np
import pytest

from jaxfed.audit.attacks import Attacked, each, over_repeats, strongest

MEMBER = np.arange(400) % 2 == 0


def attack(name, effect, seed=0, message="m"):
    rng = np.random.default_rng(seed)
    return Attacked(message, 1, name, effect * MEMBER + rng.normal(size=len(MEMBER)))


def test_the_stronger_of_two_is_chosen():
    found = [attack("weak", 0.1), attack("strong", 1.5, seed=1)]
    verdict = strongest(found, MEMBER, seed=0)
    assert {name for _, _, name, _ in verdict.attacks} == {"strong"}
    whole = each(found[1], MEMBER)
    assert verdict.area.auc == pytest.approx(whole.area.auc, abs=0.02)
    assert verdict.area.deviation == pytest.approx(whole.area.deviation, rel=0.1)
    assert (verdict.members, verdict.others) == (200, 200)


def test_the_best_of_many_guesses_is_a_guess():
    by_chance = [attack("noise", 0, seed=s) for s in range(40)]
    verdict = strongest(by_chance, MEMBER, seed=5)
    assert max(each(one, MEMBER).area.auc for one in by_chance) > 0.55
    assert abs(verdict.area.auc - 0.5) < 0.06


@pytest.mark.parametrize("seed", range(8))
def test_targets_that_an_attack_scores_are_halved_among_themselves(seed):
    """Two clients' messages, with three and five targets a side among 200."""
    one = attack("a", 0)
    places = np.arange(len(MEMBER))
    found = [
        one._replace(message=f"of {size}", score=np.where(scored, one.score, np.nan))
        for size, scored in ((6, places < 6), (10, (places >= 6) & (places < 16)))
    ]
    of_ten = strongest(found, MEMBER, seed)  # of three targets, one half has one
    assert {name for name, *_ in of_ten.attacks} == {"of 10"}
    assert (of_ten.members, of_ten.others, of_ten.others_at_once) == (5, 5, 2)
    assert strongest(found[:1], MEMBER, seed) is None
    assert strongest([], MEMBER, seed) is None


def test_repeats_are_averaged():
    verdicts = [strongest([attack("a", 1.0, seed=s)], MEMBER, seed=s) for s in range(3)]
    mean = over_repeats(verdicts)
    areas = [one.area for one in verdicts]
    assert mean.area.auc == pytest.approx(np.mean([one.auc for one in areas]))
    assert mean.spread == pytest.approx(np.std([one.auc for one in areas], ddof=1))
    expected = np.sqrt(sum(one.deviation**2 for one in areas)) / 3
    assert mean.area.deviation == pytest.approx(expected)
    assert mean.attacks == (("m", 1, "a", ""),)
    assert np.isnan(over_repeats(verdicts[:1]).spread)
