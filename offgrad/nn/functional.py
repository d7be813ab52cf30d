"""Functions of neural networks: activations, losses, normalisation, attention."""

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad.nn._inplace import with_inplace as _with_inplace
from offgrad.nn._normalization import batch_norm, group_norm, instance_norm
from offgrad.ops import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    conv1d,
    conv2d,
    conv3d,
    conv_tbc,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
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
    local_response_norm,
    log_softmax,
    logsigmoid,
    margin_ranking_loss,
    mse_loss,
    multi_head_attention_forward,
    multi_margin_loss,
    nll_loss,
    normalize,
    pairwise_distance,
    pdist,
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
from offgrad.ops._core.inplace_forms import inplace_form as _inplace_form
from offgrad.ops._indexing.counting import one_hot
from offgrad.ops._nn.average_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
)
from offgrad.ops._nn.channel_shuffling import (
    channel_shuffle,
    native_channel_shuffle,
    pixel_shuffle,
    pixel_unshuffle,
)
from offgrad.ops._nn.fractional_pooling import (
    fractional_max_pool2d,
    fractional_max_pool2d_with_indices,
    fractional_max_pool3d,
    fractional_max_pool3d_with_indices,
)
from offgrad.ops._nn.grid_sampling import affine_grid, grid_sample
from offgrad.ops._nn.interpolation import interpolate, upsample, upsample_bilinear, upsample_nearest
from offgrad.ops._nn.max_pooling import (
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
    max_pool3d,
    max_pool3d_with_indices,
)
from offgrad.ops._nn.max_unpooling import max_unpool1d, max_unpool2d, max_unpool3d
from offgrad.ops._nn.padding import pad
from offgrad.ops._nn.sliding_blocks import fold, unfold

celu = _with_inplace(_ops.celu)
dropout = _with_inplace(_ops.dropout)
elu = _with_inplace(_ops.elu)
hardsigmoid = _with_inplace(_ops.hardsigmoid)
hardswish = _with_inplace(_ops.hardswish)
hardtanh = _with_inplace(_ops.hardtanh)
leaky_relu = _with_inplace(_ops.leaky_relu)
mish = _with_inplace(_ops.mish)
relu = _with_inplace(_ops.relu)
relu6 = _with_inplace(_ops.relu6)
rrelu = _with_inplace(_ops.rrelu)
selu = _with_inplace(_ops.selu)
silu = _with_inplace(_ops.silu)
threshold = _with_inplace(_ops.threshold)
celu_ = _ops.celu_
elu_ = _inplace_form(_ops.elu)
hardtanh_ = _inplace_form(_ops.hardtanh)
leaky_relu_ = _inplace_form(_ops.leaky_relu)
relu_ = _ops.relu_
rrelu_ = _ops.rrelu_
selu_ = _ops.selu_
threshold_ = _ops.threshold_

__all__ = [
    "one_hot",
    "pdist",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "channel_shuffle",
    "native_channel_shuffle",
    "pixel_shuffle",
    "pixel_unshuffle",
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
    "affine_grid",
    "grid_sample",
    "interpolate",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "pad",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "celu_",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "elu_",
    "embedding",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "leaky_relu_",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "mish",
    "mse_loss",
    "multi_head_attention_forward",
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
    "unfold",
]

__getattr__ = _missing("offgrad.nn.functional")
