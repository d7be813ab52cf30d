"""Views, splits, joins and copies in another order."""

from typing import Any

import numpy as np

from offgrad.ops._indexing import view_scatter
from offgrad.ops._indexing.along_dim import IndexSelect
from offgrad.ops._shape import diagonals, joining, permuting, reordering, reshaping, strided
from offgrad.ops._shape.slicing import Slice
from offgrad.ops._shape.splitting import SplitWithSizes, UnsafeSplit, UnsafeSplitWithSizes
from tests.ops.calls import call
from tests.ops.opspec import OpSpec

MATRIX = [((2, 3),)]
CUBE = [((2, 3, 2),), ((2, 0, 3),)]
TIMES = np.array([2, 0, 3])


def _placed(x: Any, src: Any, key: Any) -> Any:
    out = x.copy()
    out[key] = src
    return out


def _on_diagonal(x: Any, src: Any) -> Any:
    out = x.copy()
    rows = np.arange(src.size)
    out[rows, rows + 1] = src
    return out


def _embedded(x: Any, offset: int) -> Any:
    return np.stack([np.diag(row, offset) for row in x]) if len(x) else np.zeros((0, 3, 3))


VIEWS = [
    OpSpec("alias", (), lambda m, x: x[...], [((2, 3),), ((),)], lambda x: x, view=True),
    OpSpec("squeeze_dims", (reshaping.SqueezeDims,), lambda m, x: x.squeeze((0, -1)),
           [((1, 3, 1),), ((1, 3, 2),)], lambda x: x.reshape([n for n in x.shape if n != 1]),
           view=True),
    OpSpec("movedim", (permuting.Permute,), lambda m, x: m.movedim(x, (0, 1), (2, 0)), CUBE,
           lambda x: np.moveaxis(x, (0, 1), (2, 0)), view=True),
    OpSpec("moveaxis", (permuting.Permute,), lambda m, x: m.moveaxis(x, 0, -1), CUBE,
           lambda x: np.moveaxis(x, 0, -1), view=True),
    OpSpec("swapaxes", (permuting.Transpose,), lambda m, x: m.swapaxes(x, 0, 1), MATRIX,
           lambda x: x.swapaxes(0, 1), view=True),
    OpSpec("swapdims", (permuting.Transpose,), lambda m, x: m.swapdims(x, 0, 1), MATRIX,
           lambda x: x.swapaxes(0, 1), view=True),
    OpSpec("t_1d", (permuting.T,), lambda m, x: x.t(), [((3,),), ((),)], lambda x: x, view=True),
    OpSpec("ravel", (reshaping.View,), lambda m, x: m.ravel(x), [((2, 3),), ((),), ((0, 2),)],
           np.ravel, view=True),
    OpSpec("unflatten", (reshaping.View,), lambda m, x: m.unflatten(x, 1, (2, -1)), [((2, 6),)],
           lambda x: x.reshape(2, 2, 3), view=True),
    OpSpec("broadcast_tensors", (permuting.Expand,), lambda m, x: m.broadcast_tensors(x, x.mT),
           [((2, 1),)], lambda x: [each.copy() for each in np.broadcast_arrays(x, x.T)],
           view=True),
    OpSpec("meshgrid", (permuting.Expand,), lambda m, x: m.meshgrid(x, x[1:], indexing="ij"),
           [((3,),)], lambda x: [each.copy() for each in np.meshgrid(x, x[1:], indexing="ij")],
           view=True),
    OpSpec("meshgrid_0d", (permuting.Expand,), lambda m, x: m.meshgrid(x, indexing="ij"), [((),)],
           lambda x: x[None], view=True),
    OpSpec("meshgrid_xy", (permuting.Expand,), lambda m, x: m.meshgrid(x, x[1:], indexing="xy"),
           [((3,),)], lambda x: [each.copy() for each in np.meshgrid(x, x[1:])], view=True),
    OpSpec("atleast", (reshaping.View,),
           lambda m, x: (m.atleast_1d(x), m.atleast_2d(x), *m.atleast_3d((x, x))), [((),)],
           lambda x: [x.reshape((1,) * n) for n in (1, 2, 3, 3)], view=True),
    OpSpec("atleast_of_vector", (reshaping.Unsqueeze,),
           lambda m, x: (m.atleast_2d(x), m.atleast_3d(x)), [((2,),)],
           lambda x: (x[None], x[None, :, None]), view=True),
    OpSpec("atleast_of_matrix", (reshaping.Unsqueeze,), lambda m, x: m.atleast_3d(x), [((2, 3),)],
           lambda x: x[..., None], view=True),
    *(
        OpSpec(f"diagonal_{nr}", (diagonals.Diagonal, diagonals.DiagonalBackward),
               lambda m, x, o=options: m.diagonal(x, *o), [((3, 4, 2),), ((2, 3, 3),)],
               lambda x, o=options: x.diagonal(*o), view=True)
        for nr, options in enumerate([(), (1, 0, 2), (-1, -1, 1), (7, 0, 1)])
    ),
    *(
        OpSpec(f"unfold_{nr}", (strided.Unfold, strided.UnfoldBackward),
               lambda m, x, o=options: call(m, "unfold", x, *o), [((2, 5),), ((5, 5),)][nr // 3:],
               lambda x, o=options: np.lib.stride_tricks.sliding_window_view(
                   x, o[1], o[0])[(slice(None),) * (o[0] % 2) + (slice(None, None, o[2]),)],
               view=True)
        for nr, options in enumerate([(1, 2, 1), (-1, 3, 2), (1, 2, 3), (0, 3, 1)])
    ),
    OpSpec("as_strided", (strided.AsStrided, strided.Rearrange),
           lambda m, x: m.as_strided(x.contiguous(), (2, 2), (2, 1)), [((2, 3),)],
           lambda x: x.reshape(-1)[:4].reshape(2, 2), view=True),
    # Some elements of a transpose, in another order.
    OpSpec("as_strided_of_columns", (strided.AsStrided, strided.Rearrange),
           lambda m, x: m.as_strided((x * 1).t(), (2, 4), (1, 3), 1) * 2, [((4, 3),)]),
    OpSpec("tensor_split", (Slice,), lambda m, x: m.tensor_split(x, 3, 1),
           [((2, 5),), ((2, 2),)], lambda x: np.array_split(x, 3, 1), view=True),
    OpSpec("tensor_split_indices", (Slice,), lambda m, x: m.tensor_split(x, (1, 3), 1),
           [((2, 5),)], lambda x: np.split(x, (1, 3), 1), view=True),
    OpSpec("hsplit", (Slice,), lambda m, x: m.hsplit(x, 2), [((2, 4),), ((4,),)],
           lambda x: np.hsplit(x, 2), view=True),
    OpSpec("vsplit", (Slice,), lambda m, x: m.vsplit(x, 2), [((4, 2),)],
           lambda x: np.vsplit(x, 2), view=True),
    OpSpec("dsplit", (Slice,), lambda m, x: m.dsplit(x, 2), [((1, 2, 4),)],
           lambda x: np.dsplit(x, 2), view=True),
    OpSpec("split_with_sizes", (SplitWithSizes,),
           lambda m, x: call(m, "split_with_sizes", x, (1, 2), 1), MATRIX,
           lambda x: [x[:, :1], x[:, 1:]], view=True),
]  # fmt: skip


def _overlapping(m: Any, x: Any) -> Any:
    # Elements that occur twice add up; elements of the input at one memory position share.
    x = x.contiguous()
    windows = m.as_strided(x, (3, 2), (1, 1), 1) * 2
    doubled = x.expand(2, 2, 3)
    return windows, m.as_strided(doubled, (4,), (1,), 0) * 1


COPIES = [
    OpSpec("as_strided_overlapping", (strided.AsStrided,), _overlapping, MATRIX),
    OpSpec("unsafe_split", (UnsafeSplit,), lambda m, x: m.unsafe_split(x, 2, 1), [((2, 5),)],
           lambda x: [x[:, :2], x[:, 2:4], x[:, 4:]], twin=lambda m, x: m.split(x, 2, 1)),
    OpSpec("unsafe_chunk", (UnsafeSplit,), lambda m, x: m.unsafe_chunk(x, 2), [((4, 2),)],
           lambda x: [x[:2], x[2:]], twin=lambda m, x: m.chunk(x, 2)),
    OpSpec("unsafe_split_with_sizes", (UnsafeSplitWithSizes,),
           lambda m, x: m.unsafe_split_with_sizes(x, (1, 2), 1), MATRIX,
           lambda x: [x[:, :1], x[:, 1:]]),
    OpSpec("roll", (reordering.Roll,), lambda m, x: m.roll(x, (1, -2), (0, 1)),
           [((2, 3),), ((0, 3),)], lambda x: np.roll(x, (1, -2), (0, 1))),
    OpSpec("roll_flat", (reordering.Roll,), lambda m, x: m.roll(x, 2), [((2, 3),), ((),)],
           lambda x: np.roll(x, 2)),
    *(
        OpSpec(f"rot90_{k}", (reordering.Rot90,), lambda m, x, k=k: m.rot90(x, k, (0, 2)), CUBE,
               lambda x, k=k: np.rot90(x, k, (0, 2)))
        for k in (1, 2, -1, 4)
    ),
    OpSpec("fliplr", (reordering.Flip,), lambda m, x: m.fliplr(x), MATRIX, np.fliplr),
    OpSpec("flipud", (reordering.Flip,), lambda m, x: m.flipud(x), MATRIX, np.flipud),
    OpSpec("repeat", (reordering.Repeat,), lambda m, x: call(m, "repeat", x, 2, 1, 3),
           [((2, 3),), ((2,),), ((),), ((0, 2),)], lambda x: np.tile(x, (2, 1, 3))),
    OpSpec("repeat_none", (reordering.Repeat,), lambda m, x: call(m, "repeat", x, 0, 2), MATRIX,
           lambda x: np.tile(x, (0, 2))),
    OpSpec("tile", (reordering.Repeat,), lambda m, x: m.tile(x, (2,)), CUBE,
           lambda x: np.tile(x, (2,))),
    OpSpec("repeat_interleave", (reshaping.Clone, permuting.Expand),
           lambda m, x: m.repeat_interleave(x, 3, 1), [*MATRIX, ((2, 0),)],
           lambda x: np.repeat(x, 3, 1)),
    OpSpec("repeat_interleave_flat", (reshaping.Clone,), lambda m, x: m.repeat_interleave(x, 2),
           [*MATRIX, ((),)], lambda x: np.repeat(x, 2)),
    OpSpec("repeat_interleave_each", (IndexSelect,),
           lambda m, x, n: m.repeat_interleave(x, n, 1), [((2, 3), TIMES)],
           lambda x, n: np.repeat(x, n, 1)),
    OpSpec("diag", (diagonals.DiagonalCopy,), lambda m, x: m.diag(x, 1), [((2, 3),), ((3, 3),)],
           lambda x: np.diag(x, 1)),
    OpSpec("diag_vector", (diagonals.DiagEmbed,), lambda m, x: m.diag(x, -1), [((2,),)],
           lambda x: np.diag(x, -1)),
    OpSpec("diag_embed", (diagonals.DiagEmbed, diagonals.Diagonal),
           lambda m, x: m.diag_embed(x, -1), [((2, 2),), ((0, 2),)], lambda x: _embedded(x, -1)),
    OpSpec("diag_embed_dims", (diagonals.DiagEmbed,), lambda m, x: m.diag_embed(x, 1, 0, 2),
           [((2, 3),)], lambda x: np.moveaxis(_embedded(x, 1), 0, 1)),
    OpSpec("diagflat", (diagonals.DiagEmbed,), lambda m, x: m.diagflat(x), [((1, 2),), ((),)],
           np.diagflat),
    OpSpec("trace", (diagonals.Trace, diagonals.DiagonalBackward), lambda m, x: m.trace(x),
           [((2, 3),), ((3, 3),), ((0, 2),)], np.trace),
    OpSpec("block_diag", (joining.BlockDiag,), lambda m, *x: m.block_diag(*x),
           [((2, 1), (1, 2)), ((), (2,)), ((2, 0), (1, 1))],
           lambda a, b: np.block([
               [np.atleast_2d(a), np.zeros((np.atleast_2d(a).shape[0], np.atleast_2d(b).shape[1]))],
               [np.zeros((np.atleast_2d(b).shape[0], np.atleast_2d(a).shape[1])), np.atleast_2d(b)],
           ])),
    OpSpec("stack_mixed", (joining.Stack,), lambda m, a, b: m.stack([a, b, a], 1)[:, 1:],
           [((2, 2), (2, 2))], lambda a, b: np.stack([b, a], 1)),
    OpSpec("hstack", (joining.Cat,), lambda m, a, b: m.hstack((a, b)),
           [((2,), (3,)), ((2, 1), (2, 2)), ((), (1,))], lambda a, b: np.hstack((a, b))),
    OpSpec("vstack", (joining.Cat,), lambda m, a, b: m.vstack((a, b)), [((2,), (3, 2))],
           lambda a, b: np.vstack((a, b))),
    OpSpec("row_stack", (joining.Cat,), lambda m, a, b: m.vstack((a, b)), [((2,), (2,))],
           lambda a, b: np.vstack((a, b))),
    OpSpec("dstack", (joining.Cat,), lambda m, a, b: m.dstack((a, b)),
           [((2,), (2,)), ((2, 3), (2, 3))], lambda a, b: np.dstack((a, b))),
    OpSpec("column_stack", (joining.Cat,), lambda m, a, b: m.column_stack((a, b)),
           [((2,), (2, 2)), ((), ())], lambda a, b: np.column_stack((a, b))),
    OpSpec("concatenate", (joining.Cat,), lambda m, a, b: m.concatenate((a, b), 1),
           [((2, 1), (2, 2))], lambda a, b: np.concatenate((a, b), 1)),
    OpSpec("slice_scatter", (view_scatter.SliceScatter, Slice),
           lambda m, x, s: m.slice_scatter(x, s, 1, 1, None, 2), [((2, 5), (2, 2))],
           lambda x, s: _placed(x, s, (slice(None), slice(1, None, 2)))),
    # PyTorch does not differentiate complex ones.
    OpSpec("slice_scatter_complex", (view_scatter.SliceScatter,),
           lambda m, x, s: m.slice_scatter(x, s, 0, -2), [((4, 2), (2, 2))],
           lambda x, s: _placed(x, s, slice(2, 4)), real=False, torch=False),
    OpSpec("select_scatter", (view_scatter.SelectScatter,),
           lambda m, x, s: m.select_scatter(x, s, -1, 1), [((2, 3), (2,))],
           lambda x, s: _placed(x, s, (slice(None), 1))),
    OpSpec("diagonal_scatter", (view_scatter.DiagonalScatter, diagonals.Diagonal),
           lambda m, x, s: m.diagonal_scatter(x, s, 1), [((2, 3), (2,))], _on_diagonal),
    # PyTorch's own backward gives x the gradient of replaced elements, and none of the others.
    OpSpec("as_strided_scatter", (view_scatter.AsStridedScatter, strided.AsStrided),
           lambda m, x, s: m.as_strided_scatter(x.contiguous(), s, (2, 2), (3, 1), 1),
           [((2, 3), (2, 2))], lambda x, s: _placed(x, s, (slice(None), slice(1, 3))),
           torch=False),
]  # fmt: skip

SPECS = [*VIEWS, *COPIES]
