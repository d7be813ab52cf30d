"""Attention with several heads."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad._warning import warn_program
from offgrad.nn import functional as F
from offgrad.nn import init
from offgrad.nn.modules.linear import NonDynamicallyQuantizableLinear
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter
from offgrad.ops._nn.multihead import transposed

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention of several heads: ``forward(query, key, value)`` returns result and weights.

    Sequences are [T, B, E], [B, T, E] with `batch_first`, or [T, E]. Without `need_weights` no
    matrix of queries by keys is made.

    Args:
        embed_dim: E, the features of queries and results.
        num_heads: divides `embed_dim`.
        dropout: the probability of dropping a weight, in training.
        bias: add biases in the projections.
        add_bias_kv: append a learned key and value.
        add_zero_attn: append a key and a value of zeros.
        kdim: features of keys; `embed_dim` by default.
        vdim: features of values; `embed_dim` by default.
        batch_first: the batch is the first dimension.
        device: "cpu" or "meta".
        dtype: of the parameters.

    Raises:
        ValueError: for sizes below 1.
        AssertionError: if `num_heads` does not divide `embed_dim`.
    """

    __constants__ = ["batch_first"]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be above 0, got {embed_dim} and {num_heads}"
            )
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self._qkv_same_embed_dim = self.kdim == embed_dim == self.vdim
        self.batch_first, self.head_dim = batch_first, embed_dim // num_heads
        if embed_dim % num_heads:
            raise AssertionError(
                f"embed_dim must be divisible by num_heads, got {embed_dim} and {num_heads}"
            )
        self.add_zero_attn = add_zero_attn
        shapes: dict[str, tuple[int, ...] | None] = {
            "in_proj_weight": (3 * embed_dim, embed_dim),
            "q_proj_weight": None,
            "k_proj_weight": None,
            "v_proj_weight": None,
        }
        if not self._qkv_same_embed_dim:
            shapes = {
                "q_proj_weight": (embed_dim, embed_dim),
                "k_proj_weight": (embed_dim, self.kdim),
                "v_proj_weight": (embed_dim, self.vdim),
                "in_proj_weight": None,
            }
        shapes["in_proj_bias"] = (3 * embed_dim,) if bias else None
        shapes |= dict.fromkeys(("bias_k", "bias_v"), (1, 1, embed_dim) if add_bias_kv else None)
        for name, shape in shapes.items():
            parameter = None if shape is None else Parameter(ops.empty(shape, **kind))
            self.register_parameter(name, parameter)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, **kind)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if (weight := getattr(self, name)) is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for each in (self.bias_k, self.bias_v):
            if each is not None:
                init.xavier_normal_(each)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result and, with `need_weights`, the weights.

        Args:
            query, key, value: sequences; see the class.
            key_padding_mask: [B, S] or [S]: True for keys to ignore, or floats added to scores.
            need_weights: return the weights [B, T, S]; else None.
            attn_mask: [T, S] or [B * heads, T, S]: True where a query must not attend, or floats.
            average_attn_weights: return the heads' mean; else [B, heads, T, S].
            is_causal: `attn_mask` is causal.
        """
        if (
            attn_mask is not None
            and key_padding_mask is not None
            and attn_mask.dtype is not key_padding_mask.dtype
        ):
            warn_program(
                "Support for mismatched key_padding_mask and attn_mask is deprecated. Use the same "
                f"dtype for both, got {key_padding_mask.dtype} and {attn_mask.dtype}"
            )
        is_turned = self.batch_first and query.dim() == key.dim() == value.dim() == 3
        if is_turned:
            query, key, value = transposed(query, key, value)
        output, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (output.transpose(0, 1) if is_turned else output), weights
