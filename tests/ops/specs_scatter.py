"""Gathering, scattering and masks."""

from typing import Any

import numpy as np

from offgrad.ops._indexing import advanced, along_dim, masking
from offgrad.ops._indexing.scattering import (
    Gather,
    Put,
    Scatter,
    ScatterValue,
    Take,
)
from offgrad.ops._reduction.extrema import Scattered
from tests.ops.calls import call
from tests.ops.opspec import OpSpec

INDEX = np.array([[0, 2], [1, 0]])
ROWS = np.array([2, 0, 2])
ONCE = np.array([2, 0])
MASK = np.array([[True, False, True], [False, False, True]])


def _filled(x: Any, at: Any, value: Any) -> Any:
    out = x.copy()
    out[at] = value
    return out


def _added(x: Any, at: Any, value: Any) -> Any:
    out = x.copy()
    np.add.at(out, at, value)
    return out


def _scattered(x: Any, at: Any, source: Any) -> Any:
    out = x.copy()
    rows, columns = at.shape
    out[np.arange(rows)[:, None], at] = source[:rows, :columns] if np.ndim(source) else source
    return out


def _masked(x: Any, where: Any, source: Any) -> Any:
    out = np.broadcast_to(x, np.broadcast_shapes(x.shape, where.shape)).copy()
    chosen = np.broadcast_to(where, out.shape)
    out[chosen] = source.ravel()[: chosen.sum()]
    return out


SPECS = [
    OpSpec("index_ellipsis", (advanced.Index,), lambda m, x, i: x[..., i, None], [((2, 3), ONCE)],
           lambda x, i: x[..., i, None]),
    # NumPy puts the dimensions of separated indices first; PyTorch takes the int first.
    OpSpec("index_int_apart", (advanced.Index,), lambda m, x, i: x[0, :, i], [((2, 3, 3), ONCE)],
           lambda x, i: x[0][:, i]),
    OpSpec("index_put_add", (advanced.IndexPut,),
           lambda m, x, i, v: m.index_put(x, (i,), v, accumulate=True),
           [((3, 2), ROWS, (3, 2)), ((3, 2), ROWS, (2,)), ((3, 2), ROWS, ())], _added),
    OpSpec("index_put_tuple", (advanced.IndexPut,), lambda m, x, i, v: m.index_put(x, (i, i), v),
           [((3, 3), ONCE, (2,))], lambda x, i, v: _filled(x, (i, i), v)),
    OpSpec("index_put_basic", (advanced.IndexPut,),
           lambda m, x, i, v: m.index_put(x, (slice(1), slice(None), i), v),
           [((2, 3, 3), ONCE, (3, 2)), ((2, 3, 3), ONCE, ())],
           lambda x, i, v: _filled(x, (slice(1), slice(None), i), v), torch=False),
    OpSpec("index_put_view", (advanced.IndexPut,), lambda m, x, v: m.index_put(x, (0, ...), v),
           [((2, 3), (3,))], lambda x, v: _filled(x, 0, v), torch=False),
    OpSpec("index_select_0d", (along_dim.IndexSelect,), lambda m, x, i: m.index_select(x, 0, i),
           [((), np.array([0]))], lambda x, i: x),
    OpSpec("index_add", (along_dim.IndexAdd, along_dim.IndexSelect),
           lambda m, x, i, s: m.index_add(x, 1, i, s), [((2, 3), ROWS, (2, 3))],
           lambda x, i, s: _added(x, (slice(None), i), s)),
    OpSpec("index_add_alpha", (along_dim.IndexAdd,),
           lambda m, x, i, s: m.index_add(x, 0, i, s, alpha=-2), [((3, 2), ROWS, (3, 2))],
           lambda x, i, s: _added(x, i, -2 * s)),
    OpSpec("index_copy", (along_dim.IndexCopy, along_dim.IndexFill),
           lambda m, x, i, s: m.index_copy(x, 0, i, s),
           [((3, 2), ONCE, (2, 2)), ((3, 2), ONCE[:0], (0, 2))], _filled),
    OpSpec("index_fill", (along_dim.IndexFill,), lambda m, x, i: m.index_fill(x, 1, i, 2.5),
           [((2, 3), ROWS)], lambda x, i: _filled(x, (slice(None), i), 2.5)),
    OpSpec("index_fill_tensor", (along_dim.IndexFillTensor,),
           lambda m, x, i, v: m.index_fill(x, 1, i, v), [((2, 3), ONCE, ())],
           lambda x, i, v: _filled(x, (slice(None), i), v)),
    OpSpec("scatter", (Scatter, ScatterValue, Gather),
           lambda m, x, i, s: m.scatter(x, 1, i, s),
           [((2, 3), INDEX, (2, 2)), ((3, 3), INDEX, (2, 2))], _scattered),
    # PyTorch's own backward raises for a source larger than the index.
    OpSpec("scatter_part", (Scatter,), lambda m, x, i, s: m.scatter(x, 1, i, s),
           [((2, 3), INDEX, (3, 4)), ((2, 3), INDEX[:, :0], (2, 2))], _scattered, torch=False),
    OpSpec("scatter_value", (ScatterValue,), lambda m, x, i: m.scatter(x, 1, i, 1.5),
           [((2, 3), INDEX), ((3, 3), INDEX)], lambda x, i: _scattered(x, i, 1.5)),
    OpSpec("gather_0d", (Gather, Scattered), lambda m, x, i: m.gather(x, 0, i),
           [((), np.array(0)), ((), np.array([0]))],
           lambda x, i: np.broadcast_to(x, i.shape)),
    OpSpec("take", (Take, Scattered), lambda m, x, i: m.take(x, i),
           [((2, 3), INDEX), ((2, 3), np.array([-1, 0, -1])), ((), np.array([0, 0]))], np.take),
    OpSpec("put", (Put, Take), lambda m, x, i, s: call(m, "put", x, i, s),
           [((2, 3), np.array([4, -1]), (2,))],
           lambda x, i, s: _filled(x.ravel(), i, s).reshape(x.shape)),
    OpSpec("put_add", (Put,), lambda m, x, i, s: call(m, "put", x, i, s, accumulate=True),
           [((2, 3), np.array([4, 4, 0]), (3,))],
           lambda x, i, s: _added(x.ravel(), i, s).reshape(x.shape)),
    OpSpec("take_along_dim", (Gather,), lambda m, x, i: m.take_along_dim(x, i, 1),
           [((2, 3), INDEX), ((1, 3), INDEX), ((2, 3), INDEX[:1])],
           lambda x, i: np.take_along_axis(
               np.broadcast_to(x, (2, 3)), np.broadcast_to(i, (2, 2)), 1)),
    OpSpec("take_along_all", (Gather,), lambda m, x, i: m.take_along_dim(x, i),
           [((2, 3), np.array([5, 0, 5]))], lambda x, i: x.ravel()[i]),
    OpSpec("masked_fill_tensor", (masking.MaskedFillTensor,),
           lambda m, x, k, v: m.masked_fill(x, k, v),
           [((2, 3), MASK, ()), ((2, 3), MASK[0], ()), ((3,), MASK, ())],
           lambda x, k, v: np.where(k, v, x)),
    OpSpec("masked_select", (masking.MaskedSelect, masking.MaskedScatter),
           lambda m, x, k: m.masked_select(x, k),
           [((2, 3), MASK), ((2, 3), MASK[0]), ((3,), MASK), ((2, 3), MASK & False)],
           lambda x, k: np.broadcast_to(x, (2, 3))[np.broadcast_to(k, (2, 3))]),
    OpSpec("masked_scatter", (masking.MaskedScatter, masking.MaskedSelect),
           lambda m, x, k, s: m.masked_scatter(x, k, s),
           [((2, 3), MASK, (3,)), ((2, 3), MASK, (2, 2)), ((3,), MASK, (3,))], _masked),
]  # fmt: skip
