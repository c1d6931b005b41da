"""Membership inference against methods: what they show, the attackers' models, attacks and their results.

    surface_of(factory, keywords, algorithm)   the messages of a method's rounds           (`surface`)
    drawn_targets(federation, ...)             examples of clients, and as many others     (`observations`)
    observations(views, federation, targets)      what a round's messages reveal of these     (`observations`)
    shadow_answers(learner, ...)               answers of the attacker's own models        (`shadows`)
    attacks(seen, targets, label, shadows)     scores of every attack                      (`attacks`)
    strongest(found, is_member, seed)          AUC, interval, TPR at low FPR               (`attacks`)

`audit.Audit` does all of it for an experiment: it is attached to one by `launch.audit`, and `report` makes
its tables. The threat model is that of FedCT's Appendix E.1 (arXiv 2310.05696): a server that follows the
protocol, knows the distribution of the data, and stores all messages it receives. The attacks on arrays are
in `jaxfed.privacy.membership`.
"""
