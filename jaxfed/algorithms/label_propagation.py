"""Label propagation on exact cosines: alone at each client, and on everybody's data pooled.

Both are the baselines of Section 4.1 of XCLP (Scott, Yeo, Lampert, TMLR 2023), with its lines 7 to 10, 15
and 16 and the exact cosine in place of the estimate:

    A_ij = cos(v_i, v_j),  B = k largest of each row (not its own),  W = D^-1/2 (B + B^T) D^-1/2,
    Z = (I - alpha W)^-1 Y.

`per_client_lp`: every client for itself; nothing leaves it. `pooled_lp`: one graph over all clients'
vectors; they all leave their owners, so it is no federated method but the bound that XCLP estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.transduction import client_arrays, padded, transductive
from jaxfed.client_map import client_map, size_buckets
from jaxfed.errors import UsageError
from jaxfed.federated_algorithm import Cohort, FederatedAlgorithm, Metrics
from jaxfed.federation import UNLABELED
from jaxfed.kernels import conjugate_gradient, knn
from jaxfed.kernels.graph import normalized_graph
from jaxfed.xclp import edge_weights, predict
