"""Masks of `flex_attention`: functions of positions, and the blocks in which they allow any."""

import functools
import inspect
import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.func import vmap

MaskMod = Callable[..., Any]
"""Called with a batch, a head, a query and a key, integers in tensors without dimensions; it
returns whether the query may attend to the key.
"""


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Allow each query each key."""
    return batch.new_ones((), dtype=bool)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """Return the mask that allows what all of `mask_mods` allow.

    Raises:
        RuntimeError: if one is no function.
    """
    return _joined(mask_mods, True, operator.and_)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """Return the mask that allows what any of `mask_mods` allows.

    Raises:
        RuntimeError: if one is no function.
    """
    return _joined(mask_mods, False, operator.or_)


def _joined(mask_mods: tuple[Any, ...], start: bool, join: Callable[[Any, Any], Any]) -> MaskMod:
    if not all(callable(each) for each in mask_mods):
        raise RuntimeError(f"All inputs should be callable mask_mods, got {mask_mods}")

    def joined(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
        values = [each(b, h, q_idx, kv_idx) for each in mask_mods]
        return functools.reduce(join, values, b.new_full((), start, dtype=bool))

    return joined


def over_positions(function: Callable[..., Any], takes_score: bool) -> Callable[..., Any]:
    """Return a function of a score, a batch, a head, a query and a key for [B, H, L, S] of them.

    Args:
        function: takes tensors without dimensions.
        takes_score: whether it takes a score before the positions.
    """
    first = (0,) if takes_score else ()
    for at in (3, 2, 1, 0):  # from the keys to the batches
        own = tuple([0 if number == at else None for number in range(4)])
        function = vmap(function, (*first, *own))
    return function


def positions(shape: tuple[int, ...], device: Any = None) -> list[Tensor]:
    """Return the numbers of batches, heads, queries and keys."""
    return [ops.arange(size, device=device) for size in shape]


def create_mask(
    mod_fn: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """Return a function's values at all positions as a bool tensor [B, H, Q_LEN, KV_LEN].

    Args:
        mod_fn: a mask, called with a batch, a head, a query and a key; or a change of scores, with
            a score before them, which allows what it leaves above minus infinity.
        B: the number of batches; None: 1, for all alike.
        H: the number of heads; None: 1, for all alike.
        Q_LEN: the number of queries.
        KV_LEN: the number of keys.
        device: the CPU.

    Raises:
        AssertionError: if `mod_fn` takes another number of arguments, and for other devices.
    """
    shape = (B or 1, H or 1, Q_LEN, KV_LEN)
    takes_score = _argument_count(mod_fn) == 5
    function = over_positions(mod_fn, takes_score)
    values: Tensor
    if takes_score:
        values = function(ops.zeros(shape), *positions(shape, device)) != float("-inf")
    else:
        values = function(*positions(shape, device)).bool()
    return values


def _argument_count(function: Any) -> int:
    """Return the number of positional parameters without a default, 4 or 5.

    Raises:
        AssertionError: for other numbers.
    """
    found = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    if len(found) not in (4, 5):
        raise AssertionError(
            "Expected 4 or 5 positional args: a mask is called as mask(b, h, q_idx, kv_idx), a "
            f"change of scores as score_mod(score, b, h, q_idx, kv_idx); got {len(found)}"
        )
    return len(found)


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> "BlockMask":
    """Return a mask for `flex_attention`, with the blocks in which it allows any key.

    Args:
        mask_mod: called with a batch, a head, a query and a key, integers in tensors without
            dimensions; it returns whether the query may attend to the key.
        B: the number of batches; None: 1, for all alike.
        H: the number of heads; None: 1, for all alike.
        Q_LEN: the number of queries.
        KV_LEN: the number of keys.
        device: the CPU.
        BLOCK_SIZE: the size of blocks, of queries and of keys.
        separate_full_blocks: list blocks that are allowed as a whole apart.
        compute_dq_write_order, dq_kv_order: accepted; they are for PyTorch's kernels.

    Raises:
        AssertionError: if `mask_mod` takes another number of arguments.
        ValueError: for blocks without a size.
    """
    if _argument_count(mask_mod) != 4:
        raise AssertionError(
            "create_block_mask requires a mask_mod function, called as mask_mod(b, h, q_idx, "
            f"kv_idx), got one of 5 arguments, {mask_mod}"
        )
    rows, columns = _pair(BLOCK_SIZE)
    mask = create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device).numpy()
    counts = _block_sums(mask, rows, columns)
    full = counts == rows * columns if separate_full_blocks else np.zeros(counts.shape, bool)
    return _of_maps(
        (counts > 0) & ~full,
        full if separate_full_blocks else None,
        (Q_LEN, KV_LEN),
        (rows, columns),
        mask_mod,
    )


def _pair(size: Any) -> tuple[int, int]:
    """Return the sizes of a block, of queries and of keys, which are positive."""
    rows, columns = (size, size) if isinstance(size, int) else size
    if rows < 1 or columns < 1:
        raise ValueError(f"the sizes of a block must be positive, got {size}")
    return rows, columns


def _block_sums(mask: Any, rows: int, columns: int) -> Any:
    """Return how many elements of each block are true; the last ones may be cut."""
    *outer, height, width = mask.shape
    grid = -(-height // rows), -(-width // columns)
    padded = np.zeros((*outer, grid[0] * rows, grid[1] * columns), bool)
    padded[..., :height, :width] = mask
    return padded.reshape(*outer, grid[0], rows, grid[1], columns).sum((-3, -1))


def _ordered(chosen: Any) -> tuple[Tensor, Tensor]:
    """Return how many blocks of each row are chosen, and their numbers first of all."""
    counts = chosen.sum(-1, dtype=np.int32)
    numbers = np.argsort(~chosen, axis=-1, kind="stable").astype(np.int32)
    return ops.from_numpy(counts), ops.from_numpy(numbers)


def _map(counts: Tensor, numbers: Tensor, columns: int) -> Any:
    """Return which blocks of each row are chosen, what `_ordered` was given."""
    order = numbers.numpy()
    chosen = np.zeros((*order.shape[:-1], columns + 1), bool)
    is_listed = np.arange(order.shape[-1]) < counts.numpy()[..., None]
    np.put_along_axis(chosen, np.where(is_listed, order, columns).astype(np.int64), True, -1)
    return chosen[..., :columns]


def _of_maps(
    partial: Any,
    full: Any,
    seq_lengths: tuple[int, int],
    block_size: tuple[int, int],
    mask_mod: MaskMod,
    has_queries: bool = True,
) -> "BlockMask":
    """Return the mask with these blocks, [B, H, blocks of queries, blocks of keys] each."""
    by_query: list[Any] = []
    by_key: list[Any] = []
    for chosen in (partial, full):
        by_query += [None, None] if chosen is None else _ordered(chosen)
        is_missing = chosen is None or not has_queries
        by_key += [None, None] if is_missing else _ordered(np.swapaxes(chosen, -1, -2))
    arguments = (seq_lengths, *by_query, *by_key, block_size, mask_mod)
    return BlockMask(*arguments)


def _of_a_part(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    raise RuntimeError(
        "Cannot use mask_mod from a sliced BlockMask: its positions are those of the whole; set "
        "mask.mask_mod to a function of the positions of the part"
    )


class BlockMask:
    """A mask of `flex_attention`: a function of positions, and the blocks in which it allows any.

    Made by `create_block_mask`, or of blocks by `from_kv_blocks`.

    Args:
        seq_lengths: the numbers of queries and of keys.
        kv_num_blocks: how many blocks of keys each block of queries attends to in part, int32 [B,
            H, blocks of queries].
        kv_indices: their numbers, first in each row, [B, H, blocks of queries, blocks of keys].
        full_kv_num_blocks, full_kv_indices: the same for those that it attends to as a whole,
            where `mask_mod` is not asked; or None.
        q_num_blocks, q_indices, full_q_num_blocks, full_q_indices: the same by blocks of keys.
        BLOCK_SIZE: the numbers of queries and of keys in a block.
        mask_mod: which positions of the blocks in part are allowed.
    """

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None,
        full_kv_indices: Tensor | None,
        q_num_blocks: Tensor | None,
        q_indices: Tensor | None,
        full_q_num_blocks: Tensor | None,
        full_q_indices: Tensor | None,
        BLOCK_SIZE: tuple[int, int] = (128, 128),
        mask_mod: MaskMod = noop_mask,
    ) -> None:
        if kv_indices.dim() < 2:
            raise RuntimeError(
                f"BlockMask must have at least 2 dimensions, got {kv_indices.dim()} of kv_indices"
            )
        self.seq_lengths = seq_lengths
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self.BLOCK_SIZE, self.mask_mod = BLOCK_SIZE, mask_mod

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = 128,
        mask_mod: MaskMod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> "BlockMask":
        """Return the mask with these blocks; see `BlockMask` for the arguments.

        Args:
            seq_lengths: by default those of whole blocks.
            compute_q_blocks: list the blocks by keys as well.

        Raises:
            RuntimeError: for indices of less than two dimensions.
            AssertionError: if only one of the two tensors of full blocks is given.
        """
        if kv_indices.dim() < 2:
            raise RuntimeError(
                f"BlockMask must have at least 2 dimensions, got {kv_indices.dim()} of kv_indices"
            )
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both given or not")
        rows, columns = _pair(BLOCK_SIZE)
        count = kv_indices.shape[-1]
        lengths = seq_lengths or (kv_indices.shape[-2] * rows, count * columns)
        full = None
        if full_kv_num_blocks is not None and full_kv_indices is not None:
            full = _map(full_kv_num_blocks, full_kv_indices, count)
        mask = _of_maps(
            _map(kv_num_blocks, kv_indices, count),
            full,
            lengths,
            (rows, columns),
            mask_mod or noop_mask,
            compute_q_blocks,
        )
        mask.kv_num_blocks, mask.kv_indices = kv_num_blocks, kv_indices
        mask.full_kv_num_blocks, mask.full_kv_indices = full_kv_num_blocks, full_kv_indices
        return mask

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of batches, heads, queries and keys."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """Return the number of positions."""
        return prod(self.shape)

    def _maps(self) -> tuple[Any, Any]:
        """Return which blocks are allowed in part, and which as a whole."""
        count = self.kv_indices.shape[-1]
        partial = _map(self.kv_num_blocks, self.kv_indices, count)
        if self.full_kv_num_blocks is None or self.full_kv_indices is None:
            return partial, np.zeros(partial.shape, bool)
        return partial, _map(self.full_kv_num_blocks, self.full_kv_indices, count)

    def to_dense(self) -> Tensor:
        """Return 1 for blocks with any allowed position, else 0: int32."""
        partial, full = self._maps()
        return ops.from_numpy((partial | full).astype(np.int32))

    def sparsity(self) -> float:
        """Return the percentage of positions outside of the blocks with any allowed one."""
        computed = int(self.to_dense().sum()) * prod(self.BLOCK_SIZE)
        return 100 * (1 - computed / self.numel())

    def allowed(self) -> Tensor:
        """Return which positions are allowed: bool [B, H, queries, keys]."""
        partial, full = self._maps()
        mask = create_mask(self.mask_mod, *self.shape).numpy()
        rows, columns = (
            np.arange(length) // size
            for length, size in zip(self.seq_lengths, self.BLOCK_SIZE, strict=True)
        )
        at = (..., rows[:, None], columns)
        return ops.from_numpy((mask & partial[at]) | full[at])

    def __getitem__(self, index: Any) -> "BlockMask":
        """Return the mask of some batches, heads and blocks of queries; its function is gone."""
        parts = index if isinstance(index, tuple) else (index,)
        sizes = self.kv_num_blocks.shape
        for each, size in zip(parts, sizes, strict=False):
            if isinstance(each, int) and not -size <= each < size:
                raise IndexError(f"index {each} is out of range of a BlockMask of {[*sizes]}")
        key = tuple([slice(e, e + 1 or None) if isinstance(e, int) else e for e in parts])

        def part(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[key]

        return BlockMask.from_kv_blocks(
            self.kv_num_blocks[key],
            self.kv_indices[key],
            part(self.full_kv_num_blocks),
            part(self.full_kv_indices),
            self.BLOCK_SIZE,
            _of_a_part,
            self.seq_lengths,
            self.q_indices is not None,
        )

    def _adjust(self, new_q_len: int, new_kv_len: int) -> "BlockMask":
        """Return the mask of the first queries and keys."""
        rows, columns = (
            -(-length // size)
            for length, size in zip((new_q_len, new_kv_len), self.BLOCK_SIZE, strict=True)
        )
        partial, full = (each[..., :rows, :columns] for each in self._maps())
        return _of_maps(
            partial,
            None if self.full_kv_indices is None else full,
            (new_q_len, new_kv_len),
            self.BLOCK_SIZE,
            self.mask_mod,
            self.q_indices is not None,
        )

    def to(self, device: Any) -> "BlockMask":
        """Return the mask on a device: the CPU.

        Raises:
            RuntimeError: for another device.
        """
        moved = object.__new__(BlockMask)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device) if isinstance(value, Tensor) else value)
        return moved

    def to_string(self, grid_size: Any = (20, 20), limit: int = 4) -> str:
        """Return a picture: ``██`` for blocks allowed as a whole, ``░░`` for those in part.

        Args:
            grid_size: the most rows and columns, by leaving out others; -1 for all.
            limit: the most pairs of a batch and a head.
        """
        partial, full = self._maps()
        marks = np.where(full, "██", np.where(partial, "░░", "  "))
        steps = [1, 1]
        if grid_size != -1:
            sizes = zip(marks.shape[-2:], _pair(grid_size), strict=True)
            steps = [max(1, -(-size // most)) for size, most in sizes]
        pictures = []
        for at in list(np.ndindex(marks.shape[:-2]))[:limit]:
            grid = marks[at][:: steps[0], :: steps[1]]
            pictures.append("\n".join([f"{at}", *("".join(row) for row in grid)]))
        more = prod(marks.shape[:-2]) - len(pictures)
        return "\n".join([*pictures, *([f"... and {more} more"] if more > 0 else [])])

    def __str__(self) -> str:
        head = f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, "
        return f"{head}\n{self.to_string()}\n)"

    def __repr__(self) -> str:
        sizes = [
            f"    {name}={tuple(value.shape)},"
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        ]
        rest = [
            f"    BLOCK_SIZE={self.BLOCK_SIZE},",
            f"    shape={self.shape},",
            f"    sparsity={self.sparsity():.2f}%,",
            f"    mask_mod={getattr(self.mask_mod, '__name__', self.mask_mod)}",
        ]
        return "\n".join(["BlockMask(", *sizes, *rest, ")"])
