"""The functions behind the modules."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad import ops
from offgrad._missing import missing
from offgrad.ops import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    embedding,
    gaussian_nll_loss,
    gelu,
    glu,
    hardshrink,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    layer_norm,
    linear,
    log_softmax,
    logsigmoid,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    nll_loss,
    normalize,
    pairwise_distance,
    poisson_nll_loss,
    prelu,
    rms_norm,
    scaled_dot_product_attention,
    sigmoid,
    smooth_l1_loss,
    soft_margin_loss,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    triplet_margin_loss,
)
from offgrad.ops._core.inplace_forms import inplace_form

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def with_inplace(operation: "Callable[..., Tensor]") -> "Callable[..., Tensor]":
    """Return `operation` with one more parameter, the last, as PyTorch's: ``inplace=False``."""
    count = len(inspect.signature(operation).parameters)

    @functools.wraps(operation)
    def run(input: "Tensor", *args: Any, inplace: bool = False, **kwargs: Any) -> "Tensor":
        if len(args) == count:
            *args, inplace = args  # type: ignore[assignment]
        if inplace:
            return ops.inplace(operation, input, *args, **kwargs)
        return operation(input, *args, **kwargs)

    return run


celu = with_inplace(ops.celu)
dropout = with_inplace(ops.dropout)
elu = with_inplace(ops.elu)
hardsigmoid = with_inplace(ops.hardsigmoid)
hardswish = with_inplace(ops.hardswish)
hardtanh = with_inplace(ops.hardtanh)
leaky_relu = with_inplace(ops.leaky_relu)
mish = with_inplace(ops.mish)
relu = with_inplace(ops.relu)
relu6 = with_inplace(ops.relu6)
rrelu = with_inplace(ops.rrelu)
selu = with_inplace(ops.selu)
silu = with_inplace(ops.silu)
threshold = with_inplace(ops.threshold)
celu_ = ops.celu_
elu_ = inplace_form(ops.elu)
hardtanh_ = inplace_form(ops.hardtanh)
leaky_relu_ = inplace_form(ops.leaky_relu)
relu_ = ops.relu_
rrelu_ = ops.rrelu_
selu_ = ops.selu_
threshold_ = ops.threshold_

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "celu_",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "elu_",
    "embedding",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "leaky_relu_",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "nll_loss",
    "normalize",
    "pairwise_distance",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu_",
    "relu6",
    "rms_norm",
    "rrelu",
    "rrelu_",
    "scaled_dot_product_attention",
    "selu",
    "selu_",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "threshold_",
    "triplet_margin_loss",
]

__getattr__ = missing("offgrad.nn.functional")
