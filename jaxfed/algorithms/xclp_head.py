"""XCLP and a head: a ridge on XCLP's labels, whose answers are propagated over XCLP's graph.

    XCLP: labels, confidences  ->  sums: W = (G n / w + lambda I)^-1 B  ->  graph: Z' = (I - alpha' S)^-1 P

Equations, sources and what leaves a client: `jaxfed.xclp.heads`. It is `xclp` with `head="ridge"`,
in three exchanges and without training. Points that come later are labeled by graph and head
(`late_fraction`, `Labeling.label`), or by the head alone (`predict`).
"""

from __future__ import annotations

from dataclasses import replace

from jaxfed.algorithms.xclp import labeling_method
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.method import method
from jaxfed.settings import Share
from jaxfed.xclp import Parameters


@method(
    title="XCLP and a head",
    leaves="what XCLP sends, sums of second moments of its features by these labels, and its answers",
    one_shot=True,
    fields={"parameters": Parameters},
    without=("seed", "head"),
    takes=("execution", "num_classes"),
)
def xclp_head(
    *, late_fraction: Share = 0.0, execution: Execution = HERE, parameters: Parameters
) -> FederatedAlgorithm:
    """XCLP with a head; keywords are the fields of `jaxfed.xclp.Parameters` but `seed` and `head`.

    Args:
        late_fraction: as in `jaxfed.algorithms.xclp`.
        execution: as in `jaxfed.algorithms.xclp`.
        parameters: its other fields are keywords.
    """
    headed = replace(parameters, head="ridge")
    return labeling_method(late_fraction, execution, headed, owner="xclp_head")
