"""Shapes and indices."""

from dataclasses import replace
from typing import Any

import numpy as np

from offgrad.nn.hooks import full_backward as backward_hook
from offgrad.ops._indexing import advanced, along_dim, masking
from offgrad.ops._indexing.scattering import Gather, ScatterAdd
from offgrad.ops._reduction.extrema import Scattered
from offgrad.ops._shape import diagonals, joining, permuting, reordering, reshaping
from offgrad.ops._shape.slicing import (
    Alias,
    CombinedSelect,
    CombinedSlice,
    CombinedUnsqueeze,
    Embed,
    Select,
    Slice,
)
from offgrad.ops._shape.splitting import Split, SplitWithSizes, Unbind
from tests.ops import specs_scatter, specs_views
from tests.ops.opspec import OpSpec

MATRIX = [((2, 3),)]
ANY = [((2, 3),), ((),), ((0, 3),)]
CUBE = [((2, 3, 2),), ((2, 0, 3),)]
INDEX = np.array([[0, 2], [1, 1]])
ZEROS = [
    (np.array([[1.5, 0.0, 2.0], [0.5, -1.0, 3.0]]),),
    (np.array([[0.0, 0.0, 2.0], [0.0, -1.0, 3.0]]),),
]


def _hooked(m: Any, a: Any, b: Any) -> Any:
    module = m.nn.Module()
    module.forward = lambda a, b: (a * b.sum(), b * a.sum())
    module.register_full_backward_hook(lambda *_: None)
    return module(a, b)


def _put(m: Any, x: Any, values: Any, key: Any) -> Any:
    result = x.clone()
    result[key] = values
    return result


def _np_put(x: Any, values: Any, key: Any) -> Any:
    result = np.broadcast_to(x, x.shape).copy()
    result[key] = values
    return result


def _scatter(x: Any, at: Any, source: Any) -> Any:
    out = x.copy()
    np.add.at(out, (np.arange(at.shape[0])[:, None], at), source[: at.shape[0], : at.shape[1]])
    return out


SHAPES = [
    OpSpec("view", (reshaping.View,), lambda m, x: x.view(3, -1), MATRIX,
           lambda x: x.reshape(3, -1), view=True),
    OpSpec("reshape_copy", (reshaping.UnsafeView,), lambda m, x: x.mT.reshape(6), MATRIX,
           lambda x: x.T.reshape(6)),
    OpSpec("flatten", (reshaping.View,), lambda m, x: x.flatten(), [((2, 3),), ((0, 3),)],
           lambda x: x.ravel(), view=True),
    OpSpec("flatten_0d", (reshaping.View,), lambda m, x: x.flatten(), [((),)], np.ravel, view=True),
    OpSpec("permute", (permuting.Permute,), lambda m, x: x.permute(2, 0, 1), CUBE,
           lambda x: x.transpose(2, 0, 1), view=True),
    OpSpec("transpose", (permuting.Transpose,), lambda m, x: x.transpose(0, -1), CUBE,
           lambda x: x.swapaxes(0, -1), view=True),
    OpSpec("t", (permuting.T,), lambda m, x: m.t(x), MATRIX, np.transpose, view=True),
    OpSpec("expand", (permuting.Expand,), lambda m, x: x.expand(2, 2, -1), [((2, 3),), ((1, 3),)],
           lambda x: np.broadcast_to(x, (2, 2, 3)), view=True),
    OpSpec("expand_0d", (permuting.Expand,), lambda m, x: x.expand(2, 0), [((),), ((1, 1),)],
           lambda x: np.broadcast_to(x, (2, 0)), view=True),
    OpSpec("broadcast_to", (permuting.Expand,), lambda m, x: m.broadcast_to(x, (3, 2)), [((2,),)],
           lambda x: np.broadcast_to(x, (3, 2)), view=True),
    OpSpec("squeeze", (reshaping.Squeeze,), lambda m, x: x.squeeze(), [((1, 3, 1),)], np.squeeze,
           view=True),
    OpSpec("squeeze_dim", (reshaping.SqueezeDim,), lambda m, x: x.squeeze(-1),
           [((2, 1),), ((1, 2),)],
           lambda x: x.squeeze(-1) if x.shape[-1] == 1 else x, view=True),
    OpSpec("unsqueeze", (reshaping.Unsqueeze,), lambda m, x: x.unsqueeze(-1), ANY,
           lambda x: x[..., None], view=True),
    OpSpec("clone", (reshaping.Clone,), lambda m, x: x.clone(), ANY, np.copy),
    OpSpec("flip", (reordering.Flip,), lambda m, x: x.flip(0, -1), CUBE,
           lambda x: np.flip(x, (0, -1))),
    OpSpec("cat", (joining.Cat,), lambda m, a, b: m.cat([a, b, a], 1),
           [((2, 3), (2, 1)), ((2, 0), (2, 2))], lambda a, b: np.concatenate([a, b, a], 1)),
    OpSpec("stack", (joining.Stack,), lambda m, a, b: m.stack((a, b), -1),
           [((2, 3), (2, 3)), ((), ()), ((0,), (0,))], lambda a, b: np.stack([a, b], -1)),
    OpSpec("split", (Split,), lambda m, x: x.split(2, -1), [((2, 5),), ((2, 4),)],
           lambda x: [x[:, i : i + 2] for i in range(0, x.shape[1], 2)], view=True),
    OpSpec("split_sections", (SplitWithSizes,), lambda m, x: m.split(x, [1, 0, 2]), [((3, 2),)],
           lambda x: [x[:1], x[1:1], x[1:]], view=True),
    OpSpec("split_one_used", (Split,), lambda m, x: x.split(1)[1] * 2, [((3, 2),)],
           lambda x: x[1:2] * 2),
    OpSpec("chunk", (Split,), lambda m, x: x.chunk(3), [((5, 2),), ((2, 2),)],
           lambda x: np.split(x, [2, 4] if len(x) == 5 else [1]),
           view=True),
    OpSpec("unbind", (Unbind,), lambda m, x: x.unbind(1), MATRIX,
           lambda x: [x[:, i] for i in range(x.shape[1])], view=True),
    OpSpec("tril", (diagonals.Tril,), lambda m, x: x.tril(), [((3, 3),), ((2, 2, 3),), ((0, 2),)],
           np.tril),
    OpSpec("triu", (diagonals.Triu,), lambda m, x: m.triu(x, 1), [((3, 3),), ((2, 2, 3),)],
           lambda x: np.triu(x, 1)),
    OpSpec("module_hooks", (backward_hook.BackwardHookFunction,), _hooked, [((2, 3), (2,))],
           lambda a, b: (a * b.sum(), b * a.sum()), view=False),
]  # fmt: skip

INDICES = [
    *(
        OpSpec(f"slice_{nr}", covers, lambda m, x, key=key: x[key],
               [((4, 3, 2),)], lambda x, key=key: x[key], view=True)
        for nr, (key, covers) in enumerate(
            [
                (1, (Select, Embed)),
                (slice(1, 3), (Slice, Embed)),
                ((slice(None), -1), (Select,)),
                ((..., 0), (Select,)),
                ((None, slice(0, 4, 2)), (CombinedSlice, Embed)),
                ((1, 2, 0), (CombinedSelect,)),
                ((slice(2, 2),), (Slice,)),
                ((slice(-3, 10), 1, None), (CombinedUnsqueeze,)),
                ((), (Alias,)),
                (None, (reshaping.Unsqueeze,)),
            ]
        )
    ),
    OpSpec("narrow", (Slice,), lambda m, x: x.narrow(1, 1, 2), MATRIX, lambda x: x[:, 1:3],
           view=True),
    OpSpec("select", (Select,), lambda m, x: x.select(-1, 1), MATRIX, lambda x: x[..., 1],
           view=True),
    OpSpec("index", (advanced.Index, advanced.IndexBackward), lambda m, x, i: x[i],
           [((3, 2), INDEX), ((3, 2), np.array([], np.int64)), ((3,), np.array([-1, -1, 0]))],
           lambda x, i: x[i]),
    OpSpec("index_mask", (advanced.Index, advanced.IndexBackward), lambda m, x, k: x[k],
           [((2, 2), np.array([[True, False], [True, True]])), ((2, 2), np.array([False, True]))],
           lambda x, k: x[k]),
    OpSpec("index_mixed", (advanced.Index, advanced.IndexBackward), lambda m, x, i: x[:, i, 0],
           [((2, 3, 2), INDEX)], lambda x, i: x[:, i, 0]),
    OpSpec("index_apart", (advanced.Index,), lambda m, x, i: x[i, :, i],
           [((3, 2, 3), np.array([2, 0]))],
           lambda x, i: x[i, :, i]),
    OpSpec("index_list", (advanced.Index,), lambda m, x: x[[2, 0]], [((3, 2),)],
           lambda x: x[[2, 0]]),
    OpSpec("index_select", (along_dim.IndexSelect, along_dim.IndexSelectBackward),
           lambda m, x, i: x.index_select(1, i), [((2, 3), np.array([2, 0, 2]))],
           lambda x, i: x[:, i]),
    OpSpec("setitem_slice", (), lambda m, x, v: _put(m, x, v, (slice(None), 1)),
           [((2, 3), (2,)), ((2, 3), ())], lambda x, v: _np_put(x, v, (slice(None), 1))),
    OpSpec("setitem_step", (), lambda m, x, v: _put(m, x, v, slice(0, 4, 2)),
           [((4, 3), (3,)), ((4, 3), (2, 1))], lambda x, v: _np_put(x, v, slice(0, 4, 2))),
    OpSpec("setitem_index", (advanced.IndexPut,), lambda m, x, i, v: _put(m, x, v, i),
           [((3, 2), np.array([2, 0]), (2, 2)), ((3, 2), np.array([1]), (2,))],
           lambda x, i, v: _np_put(x, v, i)),
    OpSpec("setitem_mask", (advanced.IndexPut,), lambda m, x, k, v: _put(m, x, v, k),
           [((2, 2), np.array([[True, False], [True, True]]), (3,)),
            ((2, 2), np.array([[True, False], [True, True]]), ())],
           lambda x, k, v: _np_put(x, v, k)),
    OpSpec("gather", (Gather, Scattered), lambda m, x, i: x.gather(1, i),
           [((2, 3), INDEX), ((3, 3), INDEX), ((2, 3), np.zeros((2, 0), np.int64))],
           lambda x, i: np.take_along_axis(x[: len(i)], i, 1)),
    OpSpec("scatter_add", (ScatterAdd, Gather),
           lambda m, x, i, s: x.scatter_add(1, i, s),
           [((2, 3), INDEX, (2, 2)), ((2, 3), INDEX[:1], (1, 2))], _scatter),
    # PyTorch's own backward raises for a source larger than the index.
    OpSpec("scatter_add_part", (ScatterAdd, Embed),
           lambda m, x, i, s: x.scatter_add(1, i, s),
           [((2, 3), INDEX, (3, 4)), ((2, 3), INDEX[:1], (2, 2))], _scatter, torch=False),
    OpSpec("masked_fill", (masking.MaskedFill,), lambda m, x, k: x.masked_fill(k, -2.0),
           [((2, 3), np.array([True, False, True])), ((2, 3), np.array([[True], [False]])),
            ((), np.array(True)), ((0, 3), np.array([True, False, True]))],
           lambda x, k: np.where(k, -2.0, x)),
]  # fmt: skip

# PyTorch does not differentiate them for complex numbers.
REAL = {"slice_scatter", "select_scatter"}

SPECS = [
    each if each.name in REAL else replace(each, complex=True)
    for each in (*SHAPES, *INDICES, *specs_views.SPECS, *specs_scatter.SPECS)
]
