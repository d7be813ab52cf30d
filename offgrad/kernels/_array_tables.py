"""Tables of arrays: one call of a compiled loop works on many arrays, by their addresses.

A call per array costs microseconds of Python. A row of a table has arrays of one size that belong
together, such as a parameter, its gradient and its optimizer state. Sizes alone decide how rows are
split and shared among threads, as in `parallel_for`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from ctypes import addressof
from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array, flat, from_buffer, same_shape
from offgrad.kernels._jit import uses_numba
from offgrad.kernels._parallel import BLOCK, in_ranges

Columns = Mapping[str, Sequence[Array | None]]
"""For each role, the arrays of all rows; only those of the first role are never None."""

_NUMBERS = {np.dtype(each): each(0) for each in (np.float32, np.float64)}
_NO_DTYPE = np.dtype("V0")


def array_at(address: int, size: int, like: Any) -> Any:
    """Return the array of `size` elements at `address`, in compiled loops only.

    Args:
        address: of C-contiguous memory.
        size: number of elements.
        like: a number of the array's dtype.
    """
    raise NotImplementedError("array_at runs in compiled loops")


def arrays_at(table: Array, row: int, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arrays of a row, in compiled loops only; those that are None have no address.

    Args:
        table: of an `ArrayTable`.
        row: of the table.
        numbers: a number of each array's dtype.
    """
    raise NotImplementedError("arrays_at runs in compiled loops")


@functools.cache
def register() -> None:
    """Register both functions with Numba; comes before loops that call them."""
    from numba import carray, types
    from numba.extending import intrinsic

    from offgrad.kernels._compilers import overload

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], context.get_value_type(types.voidptr))

        return types.voidptr(address), codegen

    def array(address: Any, size: Any, like: Any) -> Any:
        return carray(pointer(address), (size,), type(like))

    def choose(table: Any, row: Any, numbers: Any) -> Any:
        # Numba indexes a tuple of several types by constants only, so the code names each index.
        arrays = [
            f"array_at(table[{at + 1}, row], table[0, row], numbers[{at}])"
            for at in range(len(numbers))
        ]
        return eval(f"lambda table, row, numbers: ({', '.join(arrays)},)", {"array_at": array_at})

    overload(array_at, lambda *_: array)
    overload(arrays_at, choose)


def batches(
    columns: Columns, keys: Sequence[Hashable], read_only: str
) -> Iterator[tuple[Any, ArrayTable]]:
    """Yield keys, and for each a table of rows that may be computed at the same time.

    These are all rows of a key and of the same dtypes; if any two arrays share memory, each row
    comes by itself, in order.

    Args:
        columns: C-contiguous arrays; those of a row have one size.
        keys: of the rows.
        read_only: the column that is only read.

    Raises:
        ValueError: if sizes differ, or an array is not contiguous or cannot be written to.
    """
    rows = [_sizes(columns)]
    rows += [_addresses(column, name != read_only) for name, column in columns.items()]
    table = ArrayTable(columns, np.array(rows, np.int64))
    if len(keys) == 1:
        yield keys[0], table
        return
    dtypes = [
        [_NO_DTYPE if each is None else each.dtype for each in column]
        for column in columns.values()
    ]
    is_uniform = all(column.count(column[0]) == len(column) for column in dtypes)
    itemsizes = [
        [each.itemsize for each in column[: 1 if is_uniform else None]] for column in dtypes
    ]
    if table.shares_memory(np.array(itemsizes)):
        for row, key in enumerate(keys):
            yield key, table.take([row])
    elif is_uniform and len(set(keys)) == 1:
        yield keys[0], table
    else:
        groups: dict[Any, list[int]] = {}
        for row, kind in enumerate(zip(keys, *dtypes, strict=True)):
            groups.setdefault(kind, []).append(row)
        for kind, members in groups.items():
            yield kind[0], table.take(members)


def update_rows(
    columns: Columns,
    keys: Sequence[Hashable],
    read_only: str,
    loop: Callable[..., None],
    reference: Callable[..., None],
    terms: Callable[[Any], tuple[Sequence[bool], Sequence[float]]],
) -> None:
    """Change arrays in place, as if row by row: by a compiled loop, or by its NumPy reference.

    Args:
        columns, keys, read_only: as in `batches`.
        loop: called as ``loop(first, last, table, numbers, factors, options)``, as in
            `ArrayTable.run`; `options` are bools.
        reference: called as ``reference(*arrays, *options, *factors)`` for each row.
        terms: returns options and factors for rows of a key.
    """
    for key, table in batches(columns, keys, read_only):
        options, factors = terms(key)
        if table.is_compiled():
            table.run(loop, factors, tuple(options))
        else:
            for row in table.rows():
                reference(*row, *options, *factors)


class ArrayTable:
    """Rows of arrays.

    Args:
        columns: the arrays; each column has one dtype, or is None.
        table: int64, [1 + columns, rows]: the rows' sizes, and the addresses of their arrays, 0 for
            None.

    Attributes:
        first: the first row, by the columns' names.
    """

    def __init__(self, columns: Columns, table: Array) -> None:
        self._columns = columns
        self._table = table
        self.first = {name: column[0] for name, column in columns.items()}

    def is_compiled(self) -> bool:
        """Return whether these arrays go to a compiled loop."""
        return uses_numba(*[each for each in self.first.values() if each is not None])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Return the arrays, or None, row by row."""
        return zip(*self._columns.values(), strict=True)

    def take(self, rows: list[int]) -> ArrayTable:
        """Return a table of some rows."""
        columns: Columns = {
            name: [each[row] for row in rows] for name, each in self._columns.items()
        }
        return ArrayTable(columns, self._table.take(rows, axis=1))

    def shares_memory(self, itemsizes: Array) -> bool:
        """Return whether any two arrays, of `itemsizes` by column and row, share memory."""
        starts = self._table[1:]
        ends = (starts + self._table[0] * itemsizes).ravel()
        starts = starts.ravel()
        order = starts.argsort()
        return bool((starts[order[1:]] < ends[order[:-1]]).any())

    def run(self, loop: Callable[..., None], factors: Sequence[float], *arguments: Any) -> None:
        """Call ``loop(table, numbers, factors, *arguments, start, stop)`` for ranges of the rows.

        Rows of more than `BLOCK` elements are split before. `numbers` are of the columns' dtypes,
        for `arrays_at`, and `factors` of that of the first.
        """
        register()
        row: list[Any] = list(self.first.values())
        numbers = tuple([_NUMBERS[(row[0] if each is None else each).dtype] for each in row])
        arguments = numbers, tuple(np.array(factors, row[0].dtype)), *arguments
        table = self._table
        if np.add.reduce(table[0]) <= BLOCK:
            loop(table, *arguments, 0, table.shape[1])
            return
        table = _split(table, np.array([each.itemsize for each in numbers]))
        # A row belongs to the range in which its first element is, counted over all rows.
        ranges = (table[0].cumsum() - table[0]) // BLOCK
        bounds = [*np.flatnonzero(np.diff(ranges, prepend=-1)).tolist(), table.shape[1]]
        in_ranges(partial(loop, table, *arguments), bounds)


def _split(table: Array, itemsizes: Array) -> Array:
    """Split rows into rows of at most `BLOCK` elements."""
    counts = np.maximum(1, -(-table[0] // BLOCK))
    firsts = np.repeat(counts.cumsum() - counts, counts)
    table = np.repeat(table, counts, axis=1)
    offsets = (np.arange(len(firsts)) - firsts) * BLOCK
    table[0] = np.minimum(BLOCK, table[0] - offsets)
    # 0 stays 0: there is no array.
    table[1:] += offsets * itemsizes[:, None] * (table[1:] != 0)
    return table


def _sizes(columns: Columns) -> list[int]:
    """Return the size of each row's arrays, after a check that they have one."""
    of_columns = [
        [None if each is None else each.size for each in column] for column in columns.values()
    ]
    sizes: Any = of_columns[0]
    for of_column in of_columns:
        if of_column != sizes and of_column.count(None) < len(sizes):
            for row in zip(*columns.values(), strict=True):
                arrays = zip(columns, row, strict=True)
                same_shape(**{name: flat(each) for name, each in arrays if each is not None})
    return list(sizes)


def _addresses(column: Sequence[Array | None], is_written: bool) -> list[int]:
    if all(each is None for each in column):
        return [0] * len(column)
    try:
        return [addressof(from_buffer(each)) for each in column]  # type: ignore[arg-type]
    except (TypeError, ValueError):  # an array is read-only, empty, bfloat16 or not contiguous
        return [_address(each, is_written) for each in column]


def _address(array: Array | None, is_written: bool) -> int:
    if array is None:
        return 0
    if is_written and not array.flags.writeable:
        raise ValueError(f"kernels cannot write to a read-only array of shape {array.shape}")
    return flat(array).ctypes.data
