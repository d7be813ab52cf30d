"""Stacks of transformer layers, and transformers of an encoder and a decoder.

Source: A. Vaswani et al., "Attention is all you need", NeurIPS 2017.
"""

import copy
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn import init
from offgrad.nn.modules._transformer_layers import (
    Activation,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from offgrad.nn.modules._transformer_layers import _get_activation_fn as _get_activation_fn
from offgrad.nn.modules.container import ModuleList
from offgrad.nn.modules.module import Module
from offgrad.nn.modules.normalization import LayerNorm

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


def _causal_mask(size: int, device: Any = None, dtype: Any = None) -> Tensor:
    return ops.full((size, size), float("-inf"), dtype=dtype, device=device).triu(1)


def _is_causal(mask: Tensor | None, is_causal: bool | None, size: int) -> bool:
    """Return whether `mask` is causal, from the hint `is_causal` or from its elements."""
    if is_causal is not None or mask is None:
        return bool(is_causal)
    array = mask._array
    if array.shape != (size, size):
        return False
    future = ~np.tri(size, dtype=np.bool_)
    if array.dtype == np.bool_:
        return bool((array == future).all())
    return bool((array == np.where(future, -np.inf, 0)).all())


def _get_clones(module: Module, N: int) -> ModuleList:
    """Return `N` copies; other libraries import it as well."""
    return ModuleList([copy.deepcopy(module) for _ in range(N)])


class TransformerEncoder(Module):
    """Copies of an encoder layer, one after the other.

    Args:
        encoder_layer: the layer.
        num_layers: the number of copies.
        norm: a normalisation of the result.
        enable_nested_tensor: has no effect: padding is computed as PyTorch does in training.
        mask_check: has no effect.
    """

    __constants__ = ["norm"]

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _get_clones(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm
        self.enable_nested_tensor, self.use_nested_tensor = enable_nested_tensor, False
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Return the layers of `src`.

        Args:
            src: [T, B, E], [B, T, E] if the layers are batch-first, or [T, E].
            mask: of the self-attention, as `MultiheadAttention` takes it.
            src_key_padding_mask: likewise.
            is_causal: whether `mask` is causal; None: found out.
        """
        first = self.layers[0] if len(self.layers) else None
        size = src.shape[_sequence_dim(src, first)]
        causal = _is_causal(mask, is_causal, size)
        output = src
        for layer in self.layers:
            output = layer(
                output, src_mask=mask, is_causal=causal, src_key_padding_mask=src_key_padding_mask
            )
        return output if self.norm is None else self.norm(output)


class TransformerDecoder(Module):
    """Copies of a decoder layer, one after the other.

    Args:
        decoder_layer: the layer.
        num_layers: the number of copies.
        norm: a normalisation of the result.
    """

    __constants__ = ["norm"]

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _get_clones(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the layers of `tgt`, which attend to `memory`; masks as `MultiheadAttention`'s."""
        first = self.layers[0] if len(self.layers) else None
        size = tgt.shape[_sequence_dim(tgt, first)]
        causal = _is_causal(tgt_mask, tgt_is_causal, size)
        output = tgt
        for layer in self.layers:
            output = layer(
                output,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=causal,
                memory_is_causal=memory_is_causal,
            )
        return output if self.norm is None else self.norm(output)


def _sequence_dim(x: Tensor, layer: Any) -> int:
    attention = getattr(layer, "self_attn", None)
    return 1 if x.dim() == 3 and getattr(attention, "batch_first", False) else 0


class Transformer(Module):
    """An encoder and a decoder that attends to its result.

    Args:
        d_model: features.
        nhead: heads.
        num_encoder_layers, num_decoder_layers: layers.
        dim_feedforward: features inside feed-forward networks.
        dropout: the probability of dropout.
        activation: ``"relu"``, ``"gelu"`` or a function.
        custom_encoder, custom_decoder: used instead of the built ones.
        layer_norm_eps: added to variances.
        batch_first: the batch is the first dimension.
        norm_first: normalise the inputs of attention and networks rather than the sums.
        bias: add biases.
        device: "cpu" or "meta".
        dtype: of the parameters.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, device, dtype,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder
        if custom_encoder is None:
            layer: Module = TransformerEncoderLayer(*options)
            self.encoder = TransformerEncoder(layer, num_encoder_layers, norm())
        self.decoder = custom_decoder
        if custom_decoder is None:
            layer = TransformerDecoderLayer(*options)
            self.decoder = TransformerDecoder(layer, num_decoder_layers, norm())
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoder's result for `tgt`; the masks are those of encoder and decoder.

        Raises:
            RuntimeError: if batches or features do not fit.
        """
        batch_dim = 0 if self.batch_first else 1
        if src.dim() == 3 and src.shape[batch_dim] != tgt.shape[batch_dim]:
            raise RuntimeError(
                f"src and tgt must have the same batch size, got {src.shape} and {tgt.shape}"
            )
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(
                "src and tgt must have d_model features, got "
                f"{src.shape} and {tgt.shape} for d_model={self.d_model}"
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(  # type: ignore[no-any-return]
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Return the float mask [sz, sz] that is -inf above the diagonal and 0 elsewhere."""
        return _causal_mask(sz, device, dtype)

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() > 1:
                init.xavier_uniform_(parameter)
