"""Layers of transformers: attention and a feed-forward network.

Source: A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
"""

from collections.abc import Callable
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.activation import GELU, ReLU
from offgrad.nn.modules.attention import MultiheadAttention
from offgrad.nn.modules.dropout import Dropout
from offgrad.nn.modules.linear import Linear
from offgrad.nn.modules.module import Module
from offgrad.nn.modules.normalization import LayerNorm

Activation = Callable[[Tensor], Tensor]


def _get_activation_fn(activation: str) -> Activation:
    """Return the function of a name; other libraries import it as well."""
    known: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu}
    if activation not in known:
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    return known[activation]


class _Layer(Module):
    """What encoder and decoder layers share."""

    __constants__ = ["norm_first"]
    linear1: Linear
    activation: Activation
    _attends_to_memory = False

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"batch_first": batch_first, "device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, **options)
        if self._attends_to_memory:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, **options)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, device=device, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, device=device, dtype=dtype)
        self.norm_first = norm_first
        parts = 3 if self._attends_to_memory else 2
        for part in range(1, parts + 1):
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, device=device, dtype=dtype)
            setattr(self, f"norm{part}", norm)
        for part in range(1, parts + 1):
            setattr(self, f"dropout{part}", Dropout(dropout))
        if isinstance(activation, str):
            activation = _get_activation_fn(activation)
        self.activation = activation
        if not self._attends_to_memory:
            is_relu = activation is F.relu or isinstance(activation, ReLU)
            is_gelu = activation is F.gelu or isinstance(activation, GELU)
            self.activation_relu_or_gelu = 1 if is_relu else 2 if is_gelu else 0

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]

    def _attend(
        self,
        attention: Module,
        x: Tensor,
        memory: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        return attention(  # type: ignore[no-any-return]
            x,
            memory,
            memory,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            need_weights=False,
            is_causal=is_causal,
        )[0]

    def _sa_block(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        result = self._attend(self.self_attn, x, x, attn_mask, key_padding_mask, is_causal)
        return self.dropout1(result)  # type: ignore[no-any-return]


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each added to its input and normalised.

    Args:
        d_model: features.
        nhead: heads of the attention.
        dim_feedforward: features inside the feed-forward network.
        dropout: the probability of dropout.
        activation: ``"relu"``, ``"gelu"`` or a function.
        layer_norm_eps: added to variances.
        batch_first: the batch is the first dimension.
        norm_first: normalise the inputs rather than the sums.
        bias: add biases.
        device: only the CPU.
        dtype: of the parameters.

    Raises:
        RuntimeError: for another text as `activation`.
    """

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the layer of `src`; the masks are those of `MultiheadAttention`."""
        x, options = src, (src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *options)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, *options))
        return self.norm2(x + self._ff_block(x))  # type: ignore[no-any-return]

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout2(self._feed_forward(x))  # type: ignore[no-any-return]


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory, and a feed-forward network.

    Each is added to its input and normalised; the arguments are those of `TransformerEncoderLayer`.
    """

    _attends_to_memory = True

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the layer of `tgt`, which attends to itself and to `memory`."""
        x = tgt
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *own)
            x = x + self._mha_block(self.norm2(x), *other)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *own))
        x = self.norm2(x + self._mha_block(x, *other))
        return self.norm3(x + self._ff_block(x))  # type: ignore[no-any-return]

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        result = self._attend(self.multihead_attn, x, mem, attn_mask, key_padding_mask, is_causal)
        return self.dropout2(result)  # type: ignore[no-any-return]

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout3(self._feed_forward(x))  # type: ignore[no-any-return]
