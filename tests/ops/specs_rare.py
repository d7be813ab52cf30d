"""Reductions at an index, parts of numbers, quantiles, distances."""

import numpy as np

from offgrad.ops._elementwise.integers import Frexp
from offgrad.ops._indexing.reducing import ScatterReduce, ScatterSum
from tests.ops.opspec import OpSpec, apart, nonzero
from tests.ops.specs_scatter import INDEX, ROWS

SPECS = [
    *(
        OpSpec(f"scatter_reduce_{reduce}", (ScatterSum if reduce == "sum" else ScatterReduce,),
               lambda m, x, i, s, reduce=reduce: m.scatter_reduce(x, 1, i, s, reduce),
               [((2, 3), INDEX, (2, 2)), ((2, 3), INDEX[:1], (1, 2))])
        for reduce in ("prod", "amax", "amin", "sum")
    ),
    OpSpec("index_reduce", (ScatterReduce,),
           lambda m, x, i, s: m.index_reduce(x, 0, i, s, "prod", include_self=False),
           [((3, 2), ROWS, (3, 2))], domain=nonzero, torch=False),
    OpSpec("frexp", (Frexp,), lambda m, x: m.frexp(x)[0], [((2, 3),), ((),), ((0,),)],
           lambda x: np.frexp(x)[0], domain=nonzero),
    OpSpec("quantile", (), lambda m, x: m.quantile(x, 0.3, 1), [((2, 5),)], domain=apart,
           reference=lambda x: np.quantile(x, 0.3, 1)),
    OpSpec("pdist", (), lambda m, x: m.pdist(x), [((4, 2),)], torch=False,
           reference=lambda x: np.array([np.linalg.norm(x[i] - x[j])
                                         for i in range(4) for j in range(i + 1, 4)])),
]  # fmt: skip
