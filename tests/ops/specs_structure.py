"""Reductions, shapes and indices."""

from typing import Any

import numpy as np

from offgrad.nn import backward_hook
from offgrad.ops import index, join, reduce, shape
from tests.ops.opspec import OpSpec, apart, nonzero, positive

MATRIX = [((2, 3),)]
ANY = [((2, 3),), ((),), ((0, 3),)]
CUBE = [((2, 3, 2),), ((2, 0, 3),)]
INDEX = np.array([[0, 2], [1, 1]])
ZEROS = [
    (np.array([[1.5, 0.0, 2.0], [0.5, -1.0, 3.0]]),),
    (np.array([[0.0, 0.0, 2.0], [0.0, -1.0, 3.0]]),),
]


def _hooked(m: Any, *args: Any) -> Any:
    module = m.nn.Module()
    module.forward = lambda *args: tuple(each * 2 for each in args)
    module.register_full_backward_hook(lambda *_: None)
    return module(*args)


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


REDUCTIONS = [
    OpSpec("sum", (reduce.Sum,), lambda m, x: x.sum(), ANY, np.sum, complex=True),
    OpSpec("sum_dim", (reduce.Sum,), lambda m, x: m.sum(x, 1), CUBE, lambda x: x.sum(1)),
    OpSpec(
        "sum_dims", (reduce.Sum,), lambda m, x: x.sum((0, -1), keepdim=True), CUBE,
        lambda x: x.sum((0, -1), keepdims=True), complex=True,
    ),
    OpSpec("mean", (reduce.Mean,), lambda m, x: x.mean(), [((2, 3),), ((),)], np.mean,
           complex=True),
    OpSpec(
        "mean_dim", (reduce.Mean,), lambda m, x: x.mean(-1, keepdim=True), [((2, 3),), ((0, 3),)],
        lambda x: x.mean(-1, keepdims=True),
    ),
    OpSpec("amax", (reduce.Amax,), lambda m, x: x.amax((0, 2)), [((2, 3, 2),)],
           lambda x: x.max((0, 2)), domain=apart),
    OpSpec("amin", (reduce.Amax,), lambda m, x: m.amin(x, 1, keepdim=True), MATRIX,
           lambda x: x.min(1, keepdims=True), domain=apart),
    OpSpec("max", (reduce.Amax,), lambda m, x: m.max(x), [((2, 3),), ((),)], np.max, domain=apart),
    OpSpec("max_dim", (reduce.MaxDim,), lambda m, x: x.max(0), [((3, 2),), ((),), ((2, 0),)],
           lambda x: (x.max(0), x.argmax(0)) if x.ndim else (x, np.int64(0)), domain=apart),
    OpSpec("min_dim", (reduce.MaxDim,), lambda m, x: tuple(x.min(-1, keepdim=True)), MATRIX,
           lambda x: (x.min(-1, keepdims=True), x.argmin(-1, keepdims=True)), domain=apart),
    OpSpec("prod", (reduce.Prod,), lambda m, x: x.prod(), ANY, np.prod, domain=nonzero,
           complex=True),
    OpSpec("prod_dim", (reduce.Prod,), lambda m, x: x.prod(1), [*MATRIX, ((2, 0),), ((0, 2),)],
           lambda x: x.prod(1), domain=nonzero),
    OpSpec("prod_zeros", (reduce.Prod,), lambda m, x: x.prod(), ZEROS, np.prod),
    OpSpec("prod_zeros_dim", (reduce.Prod,), lambda m, x: x.prod(0, keepdim=True), ZEROS,
           lambda x: x.prod(0, keepdims=True)),
    OpSpec("cumsum", (reduce.Cumsum,), lambda m, x: x.cumsum(-1), ANY,
           lambda x: x.cumsum(-1) if x.ndim else x, complex=True),
    OpSpec("var", (reduce.Mean,), lambda m, x: x.var(1), MATRIX, lambda x: x.var(1, ddof=1),
           complex=True),
    OpSpec("std", (reduce.Mean,), lambda m, x: m.std(x, (0, 1), correction=0), MATRIX, np.std),
    OpSpec("logsumexp", (reduce.Sum,), lambda m, x: x.logsumexp(-1), [*MATRIX, ((),), ((0, 3),)],
           lambda x: np.log(np.exp(x).sum(-1) if x.ndim else np.exp(x))),
    *(
        OpSpec(f"norm_{p}", (), lambda m, x, p=p: x.norm(p, dim=1), MATRIX,
               lambda x, p=p: np.linalg.norm(x, p, axis=1), domain=apart)
        for p in (2, 1, 3, 0.5, float("inf"), float("-inf"))
    ),
    OpSpec("norm", (), lambda m, x: x.norm(), ANY, lambda x: np.sqrt((np.abs(x) ** 2).sum()),
           domain=positive, complex=True),
]  # fmt: skip

SHAPES = [
    OpSpec("view", (shape.View,), lambda m, x: x.view(3, -1), MATRIX, lambda x: x.reshape(3, -1),
           complex=True, view=True),
    OpSpec("reshape_copy", (shape.View, shape.Clone), lambda m, x: x.mT.reshape(6), MATRIX,
           lambda x: x.T.reshape(6)),
    OpSpec("flatten", (shape.View,), lambda m, x: x.flatten(), [((2, 3),), ((0, 3),)],
           lambda x: x.ravel(), view=True),
    OpSpec("flatten_0d", (shape.View,), lambda m, x: x.flatten(), [((),)], np.ravel, view=True),
    OpSpec("permute", (shape.Permute,), lambda m, x: x.permute(2, 0, 1), CUBE,
           lambda x: x.transpose(2, 0, 1), complex=True, view=True),
    OpSpec("transpose", (shape.Permute,), lambda m, x: x.transpose(0, -1), CUBE,
           lambda x: x.swapaxes(0, -1), view=True),
    OpSpec("t", (shape.Permute,), lambda m, x: m.t(x), MATRIX, np.transpose, view=True),
    OpSpec("expand", (shape.Expand,), lambda m, x: x.expand(2, 2, -1), [((2, 3),), ((1, 3),)],
           lambda x: np.broadcast_to(x, (2, 2, 3)), complex=True, view=True),
    OpSpec("expand_0d", (shape.Expand,), lambda m, x: x.expand(2, 0), [((),), ((1, 1),)],
           lambda x: np.broadcast_to(x, (2, 0)), view=True),
    OpSpec("broadcast_to", (shape.Expand,), lambda m, x: m.broadcast_to(x, (3, 2)), [((2,),)],
           lambda x: np.broadcast_to(x, (3, 2)), view=True),
    OpSpec("squeeze", (shape.View,), lambda m, x: x.squeeze(), [((1, 3, 1),)], np.squeeze,
           view=True),
    OpSpec("squeeze_dim", (shape.View,), lambda m, x: x.squeeze(-1), [((2, 1),), ((1, 2),)],
           lambda x: x.squeeze(-1) if x.shape[-1] == 1 else x, view=True),
    OpSpec("unsqueeze", (shape.View,), lambda m, x: x.unsqueeze(-1), ANY, lambda x: x[..., None],
           view=True),
    OpSpec("clone", (shape.Clone,), lambda m, x: x.clone(), ANY, np.copy, complex=True),
    OpSpec("flip", (shape.Flip,), lambda m, x: x.flip(0, -1), CUBE, lambda x: np.flip(x, (0, -1))),
    OpSpec("cat", (join.Cat,), lambda m, a, b: m.cat([a, b, a], 1),
           [((2, 3), (2, 1)), ((2, 0), (2, 2))], lambda a, b: np.concatenate([a, b, a], 1),
           complex=True),
    OpSpec("stack", (join.Cat,), lambda m, a, b: m.stack((a, b), -1),
           [((2, 3), (2, 3)), ((), ()), ((0,), (0,))], lambda a, b: np.stack([a, b], -1)),
    OpSpec("split", (join.Split,), lambda m, x: x.split(2, -1), [((2, 5),), ((2, 4),)],
           lambda x: [x[:, i : i + 2] for i in range(0, x.shape[1], 2)], view=True),
    OpSpec("split_sections", (join.Split,), lambda m, x: m.split(x, [1, 0, 2]), [((3, 2),)],
           lambda x: [x[:1], x[1:1], x[1:]], view=True),
    OpSpec("split_one_used", (join.Split,), lambda m, x: x.split(1)[1] * 2, [((3, 2),)],
           lambda x: x[1:2] * 2),
    OpSpec("chunk", (join.Split,), lambda m, x: x.chunk(3), [((5, 2),), ((2, 2),)],
           lambda x: np.split(x, [2, 4] if len(x) == 5 else [1]),
           view=True),
    OpSpec("unbind", (join.Split,), lambda m, x: x.unbind(1), MATRIX,
           lambda x: [x[:, i] for i in range(x.shape[1])], view=True),
    OpSpec("tril", (shape.Tril,), lambda m, x: x.tril(), [((3, 3),), ((2, 2, 3),), ((0, 2),)],
           np.tril, complex=True),
    OpSpec("triu", (shape.Tril,), lambda m, x: m.triu(x, 1), [((3, 3),), ((2, 2, 3),)],
           lambda x: np.triu(x, 1)),
    OpSpec("module_hooks", (backward_hook.BackwardHookFunction,), _hooked, [((2, 3), (2,))],
           lambda a, b: (a * 2, b * 2), view=False),
]  # fmt: skip

INDICES = [
    *(
        OpSpec(f"slice_{nr}", (index.Slice, index.Embed), lambda m, x, key=key: x[key],
               [((4, 3, 2),)], lambda x, key=key: x[key], complex=nr == 0, view=True)
        for nr, key in enumerate(
            [1, slice(1, 3), (slice(None), -1), (..., 0), (None, slice(0, 4, 2)),
             (1, 2, 0), (slice(2, 2),), (slice(-3, 10), None, 1), ()]
        )
    ),
    OpSpec("narrow", (index.Slice,), lambda m, x: x.narrow(1, 1, 2), MATRIX, lambda x: x[:, 1:3],
           view=True),
    OpSpec("select", (index.Slice,), lambda m, x: x.select(-1, 1), MATRIX, lambda x: x[..., 1],
           view=True),
    OpSpec("index", (index.Index, index.IndexAdd), lambda m, x, i: x[i],
           [((3, 2), INDEX), ((3, 2), np.array([], np.int64)), ((3,), np.array([-1, -1, 0]))],
           lambda x, i: x[i], complex=True),
    OpSpec("index_mask", (index.Index, index.IndexAdd), lambda m, x, k: x[k],
           [((2, 2), np.array([[True, False], [True, True]])), ((2, 2), np.array([False, True]))],
           lambda x, k: x[k]),
    OpSpec("index_mixed", (index.Index, index.IndexAdd), lambda m, x, i: x[:, i, 0],
           [((2, 3, 2), INDEX)], lambda x, i: x[:, i, 0]),
    OpSpec("index_apart", (index.Index,), lambda m, x, i: x[i, :, i],
           [((3, 2, 3), np.array([2, 0]))],
           lambda x, i: x[i, :, i]),
    OpSpec("index_list", (index.Index,), lambda m, x: x[[2, 0]], [((3, 2),)], lambda x: x[[2, 0]]),
    OpSpec("index_select", (index.Index,), lambda m, x, i: x.index_select(1, i),
           [((2, 3), np.array([2, 0, 2]))], lambda x, i: x[:, i]),
    OpSpec("setitem_slice", (index.IndexPut,), lambda m, x, v: _put(m, x, v, (slice(None), 1)),
           [((2, 3), (2,)), ((2, 3), ())], lambda x, v: _np_put(x, v, (slice(None), 1)),
           complex=True),
    OpSpec("setitem_step", (index.IndexPut,), lambda m, x, v: _put(m, x, v, slice(0, 4, 2)),
           [((4, 3), (3,)), ((4, 3), (2, 1))], lambda x, v: _np_put(x, v, slice(0, 4, 2))),
    OpSpec("setitem_index", (index.IndexPut,), lambda m, x, i, v: _put(m, x, v, i),
           [((3, 2), np.array([2, 0]), (2, 2)), ((3, 2), np.array([1]), (2,))],
           lambda x, i, v: _np_put(x, v, i)),
    OpSpec("setitem_mask", (index.IndexPut,), lambda m, x, k, v: _put(m, x, v, k),
           [((2, 2), np.array([[True, False], [True, True]]), (3,)),
            ((2, 2), np.array([[True, False], [True, True]]), ())],
           lambda x, k, v: _np_put(x, v, k)),
    OpSpec("gather", (index.Gather, index.ScatterAdd), lambda m, x, i: x.gather(1, i),
           [((2, 3), INDEX), ((3, 3), INDEX), ((2, 3), np.zeros((2, 0), np.int64))],
           lambda x, i: np.take_along_axis(x[: len(i)], i, 1), complex=True),
    OpSpec("scatter_add", (index.ScatterAdd, index.Gather),
           lambda m, x, i, s: x.scatter_add(1, i, s),
           [((2, 3), INDEX, (2, 2)), ((2, 3), INDEX[:1], (1, 2))], _scatter),
    # PyTorch's own backward raises for a source larger than the index.
    OpSpec("scatter_add_part", (index.ScatterAdd, index.Embed),
           lambda m, x, i, s: x.scatter_add(1, i, s),
           [((2, 3), INDEX, (3, 4)), ((2, 3), INDEX[:1], (2, 2))], _scatter, torch=False),
    OpSpec("masked_fill", (index.MaskedFill,), lambda m, x, k: x.masked_fill(k, -2.0),
           [((2, 3), np.array([True, False, True])), ((2, 3), np.array([[True], [False]])),
            ((), np.array(True)), ((0, 3), np.array([True, False, True]))],
           lambda x, k: np.where(k, -2.0, x), complex=True),
]  # fmt: skip

SPECS = [*REDUCTIONS, *SHAPES, *INDICES]
