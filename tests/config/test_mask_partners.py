"""Mask partners suffice for every round: 59 and 78 clients need fewer of them than 58 and 77."""

import pytest

from jaxfed.config import file as config_file
from jaxfed.config.check import check, check_number_of_clients
from jaxfed.errors import UsageError
from jaxfed.secure.session.neighborhoods import neighborhood

GROUPS = ("federation.num_clients=155", "cohort_size=78", "sampling=groups", "rounds=4")
XCLP = ("baselines=()", "xclp.row_sums=masked_resilient", "xclp.influence=columns")
TRAINING = "ml_collections_configs/fedavg_xclp.py"
STAGE_1 = 2


def loaded(*overrides, config="ml_collections_configs/xclp_digits.py"):
    return config_file.load(config, overrides)


def refusal(call, *arguments):
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_smaller_group_is_checked_too():
    assert (neighborhood(77).size, neighborhood(78).size) == (26, 24)
    line = refusal(check, loaded(*GROUPS, *XCLP, "xclp.mask_partners=24"))
    assert line.startswith("config.xclp.mask_partners=24: too few, or odd, for 77 clients")
    assert line.endswith("; use 26 or more, even")
    check(loaded(*GROUPS, *XCLP, "xclp.mask_partners=26"))


def test_groups_are_checked_by_their_own_numbers():
    """100 clients in groups of at most 78 are two groups of 50."""
    assert neighborhood(50).size == 20
    check(loaded(*GROUPS, *XCLP, "federation.num_clients=100", "xclp.mask_partners=20"))


def test_a_number_of_clients_that_the_data_say_is_checked_with_them():
    natural = ("federation.num_clients=0", "federation.partition=natural")
    config = loaded(*GROUPS, *XCLP, *natural, "xclp.mask_partners=24")
    check(config)
    assert "mask_partners=24: too few, or odd, for 77" in refusal(
        check_number_of_clients, config, 155
    )
    check_number_of_clients(config, 156)


def test_a_variant_has_the_partners_of_its_algorithm():
    config = config_file.load(
        "ml_collections_configs/fedct.py",
        (
            *("baselines=()", "federation.num_clients=20", "cohort_size=0"),
            *("fedct.sums=masked_resilient", "fedct.mask_partners=4", "masked.algorithm=fedct"),
        ),
    )
    with config.unlocked():
        config.algorithm = "masked"
    assert refusal(check, config).startswith(
        "config.fedct.mask_partners=4: too few, or odd, for 20"
    )
