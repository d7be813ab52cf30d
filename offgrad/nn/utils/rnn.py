"""Sequences of several lengths: padded to one tensor, or packed without padding."""

from collections.abc import Iterable as _Iterable
from collections.abc import Sequence as _Sequence
from typing import Any as _Any
from typing import NamedTuple as _NamedTuple

import numpy as _np

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd.tensor_base import describe as _describe
from offgrad.autograd.tensor_base import wrap as _wrap

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Fields(_NamedTuple):
    data: _Tensor
    batch_sizes: _Tensor
    sorted_indices: _Tensor | None
    unsorted_indices: _Tensor | None


class PackedSequence(_Fields):
    """Sequences step by step: at each step the elements of those that are long enough.

    Attributes:
        data: [steps of all sequences, ...].
        batch_sizes: the number of sequences at each step, int64.
        sorted_indices: the order, longest first, in which they were packed; None for the given one.
        unsorted_indices: the inverse of `sorted_indices`.
    """

    def __new__(
        cls,
        data: _Any,
        batch_sizes: _Tensor | None = None,
        sorted_indices: _Tensor | None = None,
        unsorted_indices: _Tensor | None = None,
    ) -> "PackedSequence":
        if batch_sizes is None:
            if not isinstance(data, (list, tuple)) or len(data) != 2:
                raise AssertionError("a packed sequence is made of two: data and batch_sizes")
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: _Any, **kwargs: _Any) -> "PackedSequence":
        """Return the sequence with `data` converted as by ``Tensor.to``; itself if nothing is."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        return type(self)(data, self.batch_sizes, self.sorted_indices, self.unsorted_indices)

    def cpu(self) -> "PackedSequence":
        """Return this sequence: all tensors are on the CPU."""
        return self

    def pin_memory(self) -> "PackedSequence":
        """Return this sequence: there is no other device to copy it to."""
        return self

    def double(self) -> "PackedSequence":
        """Convert to float64."""
        return self.to(_np.float64)

    def float(self) -> "PackedSequence":
        """Convert to float32."""
        return self.to(_np.float32)

    def half(self) -> "PackedSequence":
        """Convert to float16."""
        return self.to(_np.float16)

    def long(self) -> "PackedSequence":
        """Convert to int64."""
        return self.to(_np.int64)

    def int(self) -> "PackedSequence":
        """Convert to int32."""
        return self.to(_np.int32)

    def short(self) -> "PackedSequence":
        """Convert to int16."""
        return self.to(_np.int16)

    def char(self) -> "PackedSequence":
        """Convert to int8."""
        return self.to(_np.int8)

    def byte(self) -> "PackedSequence":
        """Convert to uint8."""
        return self.to(_np.uint8)

    @property
    def is_cuda(self) -> bool:
        """Whether `data` is on a GPU: never."""
        return False

    def is_pinned(self) -> bool:
        """Return whether `data` is in pinned memory: never."""
        return False


def invert_permutation(permutation: _Tensor | None) -> _Tensor | None:
    """Return the inverse of a permutation; None of None."""
    return None if permutation is None else _wrap(_np.argsort(permutation._array))


def _places(counts: _Any) -> tuple[_Tensor, _Tensor]:
    """Return the step and the sequence of each row of packed data."""
    counts = counts.astype(_np.int64)
    steps = _np.repeat(_np.arange(len(counts)), counts)
    first = _np.cumsum(counts) - counts
    return _wrap(steps), _wrap(_np.arange(len(steps)) - first[steps])


def pack_padded_sequence(
    input: _Tensor, lengths: _Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Return padded sequences without their padding.

    Args:
        input: [T, B, ...], or [B, T, ...] with `batch_first`.
        lengths: the length of each sequence, a tensor or a list.
        batch_first: see `input`.
        enforce_sorted: require that lengths decrease; otherwise the sequences are sorted.

    Raises:
        RuntimeError: for lengths out of range, of another number, or out of order.
    """
    sizes = _np.asarray(lengths._array if isinstance(lengths, _Tensor) else lengths)
    sizes = sizes.astype(_np.int64)
    order = None
    if not enforce_sorted:
        order = _wrap(_np.argsort(-sizes, kind="stable"))
        sizes = sizes[order._array]
        input = input.index_select(0 if batch_first else 1, order)
    padded = input.transpose(0, 1) if batch_first else input
    steps, batch = padded._array.shape[:2]
    if sizes.shape != (batch,):
        raise RuntimeError(
            "Expected `len(lengths)` to be equal to batch_size, one number for each of "
            f"{batch} sequences, got {sizes.size}"
        )
    if not padded._array.size:
        raise RuntimeError(f"Cannot pack empty tensors, got a {_describe(padded)}")
    if batch and sizes.min() <= 0:
        raise RuntimeError(
            f"Length of all samples has to be greater than 0, got {sizes.tolist()}; leave out "
            "empty ones"
        )
    if (sizes[1:] > sizes[:-1]).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True, got "
            f"{sizes.tolist()}; pass enforce_sorted=False"
        )
    if batch and sizes[0] > steps:
        raise RuntimeError(
            f"lengths must be at most the {steps} steps of the input, got {sizes.tolist()} for a "
            f"{_describe(padded)}"
        )
    counts = (sizes > _np.arange(sizes[0] if batch else 0)[:, None]).sum(1)
    return PackedSequence(padded[_places(counts)], _wrap(counts), order)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[_Tensor, _Tensor]:
    """Return the padded sequences, the inverse of `pack_padded_sequence`, and their lengths.

    Args:
        sequence: the packed sequences.
        batch_first: return [B, T, ...] rather than [T, B, ...].
        padding_value: fills the ends of shorter sequences.
        total_length: T, if longer than the longest sequence.

    Raises:
        ValueError: if `total_length` is too short.
    """
    counts = sequence.batch_sizes._array
    steps = len(counts)
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                f"total_length must be {steps}, the longest sequence, or more, got {total_length}"
            )
        steps = total_length
    data = sequence.data
    shape = (steps, int(counts[0]), *data._array.shape[1:])
    padded = _ops.full(shape, padding_value, dtype=data.dtype)
    padded = padded.index_put(_places(counts), data)
    sizes = (counts[:, None] > _np.arange(shape[1])).sum(0)
    if batch_first:
        padded = padded.transpose(0, 1)
    if (order := sequence.unsorted_indices) is not None:
        return padded.index_select(0 if batch_first else 1, order), _wrap(sizes[order._array])
    return padded, _wrap(sizes)


def pad_sequence(
    sequences: _Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> _Tensor:
    """Return sequences [T_i, ...] as one tensor [T, B, ...], padded to the longest.

    Args:
        sequences: tensors that differ in their first size alone.
        batch_first: return [B, T, ...].
        padding_value: fills the ends of shorter sequences.
        padding_side: ``"right"``, or ``"left"`` for their beginnings.

    Raises:
        RuntimeError: for no sequences, other shapes, or another side.
    """
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"padding_side must be 'left' or 'right', got {padding_side!r}")
    if not isinstance(sequences, _Iterable):
        raise RuntimeError(f"pad_sequence takes an iterable of tensors, got {type(sequences)}")
    given = list(sequences.unbind(0) if isinstance(sequences, _Tensor) else sequences)
    if not given:
        raise RuntimeError("received an empty list of sequences")
    trailing = given[0]._array.shape[1:]
    for each in given:
        if each._array.shape[1:] != trailing:
            raise RuntimeError(
                "pad_sequence: the sizes after the first must match those of the first sequence, "
                f"got a {_describe(each)} beside a {_describe(given[0])}"
            )
    longest = max(len(each) for each in given)
    padded = []
    for each in given:
        if len(each) < longest:
            shape = (longest - len(each), *trailing)
            padding = _ops.full(shape, padding_value, dtype=each.dtype)
            each = _ops.cat([padding, each] if padding_side == "left" else [each, padding])
        padded.append(each)
    return _ops.stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: _Tensor, lengths: _Tensor, batch_first: bool = False
) -> list[_Tensor]:
    """Return the sequences of a padded tensor: the inverse of `pad_sequence`."""
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    return [
        sequence[: int(length)]
        for sequence, length in zip(padded_sequences.unbind(0), lengths, strict=False)
    ]


def pack_sequence(sequences: _Sequence[_Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [T_i, ...]; the arguments are those of `pack_padded_sequence`."""
    lengths = [len(each) for each in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[_Tensor]:
    """Return the sequences that `pack_sequence` packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


__getattr__ = _missing("offgrad.nn.utils.rnn")
