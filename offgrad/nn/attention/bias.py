"""Causal masks of scaled dot-product attention for queries and keys of different counts."""

import enum as _enum
import warnings as _warnings
from typing import Any as _Any

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd.override_state import disabled_torch_function as _disabled_torch_function

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]


class CausalVariant(_enum.IntEnum):
    """Where the diagonal of a causal mask ends that is not square."""

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


class CausalBias(_Tensor):
    """A causal mask for ``attn_mask``: bools [seq_len_q, seq_len_kv], True where a query attends.

    Args:
        variant: whether the first query attends to the first key only, or the last query to all.
        seq_len_q: the number of queries.
        seq_len_kv: the number of keys.

    Raises:
        AssertionError: if `variant` is no member of `CausalVariant`.
    """

    __torch_function__ = staticmethod(_disabled_torch_function)
    variant: CausalVariant
    seq_len_q: int
    seq_len_kv: int

    def __new__(cls, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> _Any:
        """Make the mask."""
        if not isinstance(variant, CausalVariant):
            raise AssertionError(f"variant must be a CausalVariant, got {type(variant).__name__}")
        is_right = variant is CausalVariant.LOWER_RIGHT
        every = _ops.ones(seq_len_q, seq_len_kv, dtype=bool)
        return cls._make_subclass(cls, every.tril(seq_len_kv - seq_len_q if is_right else 0))

    def __init__(self, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> None:
        super().__init__()
        self.variant, self.seq_len_q, self.seq_len_kv = variant, seq_len_q, seq_len_kv
        if variant is CausalVariant.LOWER_RIGHT and seq_len_q > seq_len_kv:
            _warnings.warn(
                f"the first {seq_len_q - seq_len_kv} of {seq_len_q} queries attend to no key of "
                f"{seq_len_kv}: Lower right causal bias",
                UserWarning,
                stacklevel=3,
            )


def causal_upper_left(*size: int) -> CausalBias:
    """Return a mask in which query i attends to the keys 0 to i.

    Raises:
        AssertionError: for other sizes than those of the queries and the keys.
    """
    return _causal("causal_upper_left", CausalVariant.UPPER_LEFT, size)


def causal_lower_right(*size: int) -> CausalBias:
    """Return a mask in which the last query attends to all keys, each before it to one less.

    Raises:
        AssertionError: for other sizes than those of the queries and the keys.
    """
    return _causal("causal_lower_right", CausalVariant.LOWER_RIGHT, size)


def _causal(where: str, variant: CausalVariant, size: tuple[int, ...]) -> CausalBias:
    if len(size) != 2:
        raise AssertionError(f"{where} only supports 2D tensors, got the sizes {list(size)}")
    return CausalBias(variant, *size)


__getattr__ = _missing("offgrad.nn.attention.bias")
