"""Membership inference against methods: targets, the attackers' shadow models, and attack results.

    targets = drawn_targets(federation, members=0, population=500, seed=seed)
    seen    = sightings(algorithm.views(before, after, cohort, key), federation, targets)
    shadows = answers of the attacker's own models                           (`jaxfed.audit.shadows`)
    found   = attacks(seen, targets, shadows)
    verdict = strongest(found, seed)                                         # AUC, interval, TPR at low FPR

The threat model is that of FedCT's Appendix E.1 (arXiv 2310.05696): a server that follows the protocol, knows
the distribution of the data, and stores all messages it receives. The attacks on arrays are in
`jaxfed.privacy.membership`. Methods define the contents of their messages by
`jaxfed.federation.attack_surface`. Nothing here depends on a method or a config. `jaxfed.experiment` runs it.
"""

from jaxfed.audit.attacks import Attacked, attacks
from jaxfed.audit.distilled_shadows import Schooling, student_answers
from jaxfed.audit.shadows import Shadows, on_own_labels, shadow_answers, shadow_memberships
from jaxfed.audit.sightings import Sighting, sightings
from jaxfed.audit.targets import AuditTargets, drawn_targets
from jaxfed.audit.verdict import Verdict, each, has_enough, messages, over_repeats, strongest

__all__ = [
    "Attacked",
    "AuditTargets",
    "Schooling",
    "Shadows",
    "Sighting",
    "Verdict",
    "attacks",
    "drawn_targets",
    "each",
    "has_enough",
    "messages",
    "on_own_labels",
    "over_repeats",
    "shadow_answers",
    "shadow_memberships",
    "sightings",
    "strongest",
    "student_answers",
]
