"""What `MethodChecks` asks of a method on digits, of small rounds that a test compiles anyway."""

import jax
from small_training import KEY

from jaxfed.federation.cohort import Cohort
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.testing.method_checks import assert_equal, num_compilations


def check_rounds(algorithm, federation, cohorts, folder):
    """Play rounds of cohorts of one size twice.

    All but the first compile nothing. From a state that was saved and loaded, with clients in another
    order, they give the same bits; of two clients any order has the same sum, so there should be three.
    """

    def played(state, number, order=1):
        cohort = Cohort(*(field[::order] for field in federation.cohort(cohorts[number])))
        return algorithm.round(state, cohort, jax.random.fold_in(KEY, number))[0]

    start = algorithm.init(KEY, federation)
    states, counts = [start], []
    for number in range(len(cohorts)):
        states.append(played(states[-1], number))
        counts.append(num_compilations())
    assert len(set(counts)) == 1, counts
    Checkpoints(folder).save(1, played(start, 0, order=-1), {})
    state = Checkpoints(folder).latest().state(template=start)
    for number in range(1, len(cohorts)):
        state = played(state, number, order=-1)
    assert_equal(states[-1], state)
