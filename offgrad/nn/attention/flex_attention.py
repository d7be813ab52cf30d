"""Attention whose scores a function changes, and whose mask is a function of positions."""

from offgrad._missing import missing as _missing
from offgrad.nn.attention._block_masks import (
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    noop_mask,
    or_masks,
)
from offgrad.nn.attention._flex import AuxOutput, AuxRequest, FlexKernelOptions, flex_attention

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]

__getattr__ = _missing("offgrad.nn.attention.flex_attention")
