"""The section `clock`: mistakes in one line."""

import pytest
from invoking import invoke

from jaxfed.config import file as config_file
from jaxfed.config import methods
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError
from jaxfed.experiment.run.loop import first_repeat
from jaxfed.federation.clock import Clock

CONFIG = "ml_collections_configs/federated_optimization.py"
TIMED = "clock.seconds_per_example=0.01"
AT_SERVER = "ml_collections_configs/labels_at_server.py:smoke"


def loaded(*overrides, config=CONFIG):
    return config_file.load(config, overrides)


def test_it_is_off_by_default_and_whole_where_it_is_on():
    assert section_of(loaded(), "clock") == Clock()
    assert not Clock().is_on
    config = loaded(config=f"{CONFIG}:clock")
    check(config)
    assert section_of(config, "clock").is_on
    own = methods.all_keywords(config, "fedbuff")
    assert own == {"concurrency": 10, "staleness_exponent": 0.5}


def test_asynchronous_rounds_need_time(tmp_path):
    arguments = [f"--config={CONFIG}:smoke", f"--workdir={tmp_path / 'w'}", "--config.baselines="]
    status, err = invoke([*arguments, "--config.algorithm=fedbuff"])
    assert status == 2
    assert err.splitlines()[-1] == (
        "jaxfed: config.clock.seconds_per_example=0.0: the rounds of fedbuff are asynchronous, in "
        "simulated time; set it, such as to 0.01"
    )
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sampling=groups", "config.sampling='groups': concurrency=10 replaces"),
        (
            "fedbuff.concurrency=4",
            "config.fedbuff.concurrency=4: the server's step takes 20 arrivals",
        ),
    ],
)
def test_what_does_not_go_with_time_is_refused_by_its_key(override, line):
    overrides = (TIMED, "algorithm=fedbuff", "baselines=()", "cohort_size=0", override)
    config = loaded(*overrides, config=f"{CONFIG}:smoke")
    check(config)
    with pytest.raises(UsageError) as caught:
        first_repeat(config, Simulation(config))
    assert str(caught.value).startswith(line)
