"""Functions of neural networks: activations, losses, normalisation, attention."""

from offgrad import ops as _ops
from offgrad._missing import missing as _missing
from offgrad._pickling import name_functions as _name_functions
from offgrad.nn import _dropout
from offgrad.nn._embeddings import embedding, embedding_bag
from offgrad.nn._inplace import with_inplace as _with_inplace
from offgrad.nn._linear_cross_entropy import linear_cross_entropy
from offgrad.nn._normalization import batch_norm, group_norm, instance_norm
from offgrad.nn._probabilities import gumbel_softmax, log_softmax, softmax, softmin
from offgrad.nn._reduction import with_legacy_reduction as _with_legacy_reduction
from offgrad.ops import (
    bilinear,
    conv1d,
    conv2d,
    conv3d,
    conv_tbc,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    cosine_similarity,
    ctc_loss,
    gaussian_nll_loss,
    gelu,
    glu,
    hardshrink,
    huber_loss,
    layer_norm,
    linear,
    local_response_norm,
    logsigmoid,
    multi_head_attention_forward,
    normalize,
    pairwise_distance,
    pdist,
    prelu,
    rms_norm,
    scaled_dot_product_attention,
    sigmoid,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    triplet_margin_with_distance_loss,
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

alpha_dropout = _with_inplace(_dropout.alpha_dropout)
celu = _with_inplace(_ops.celu)
dropout = _with_inplace(_dropout.dropout)
dropout1d = _with_inplace(_dropout.dropout1d)
dropout2d = _with_inplace(_dropout.dropout2d)
dropout3d = _with_inplace(_dropout.dropout3d)
elu = _with_inplace(_ops.elu)
feature_alpha_dropout = _with_inplace(_dropout.feature_alpha_dropout)
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

binary_cross_entropy = _with_legacy_reduction(_ops.binary_cross_entropy)
binary_cross_entropy_with_logits = _with_legacy_reduction(_ops.binary_cross_entropy_with_logits)
cosine_embedding_loss = _with_legacy_reduction(_ops.cosine_embedding_loss)
cross_entropy = _with_legacy_reduction(_ops.cross_entropy)
hinge_embedding_loss = _with_legacy_reduction(_ops.hinge_embedding_loss)
kl_div = _with_legacy_reduction(_ops.kl_div)
l1_loss = _with_legacy_reduction(_ops.l1_loss)
margin_ranking_loss = _with_legacy_reduction(_ops.margin_ranking_loss)
mse_loss = _with_legacy_reduction(_ops.mse_loss)
multi_margin_loss = _with_legacy_reduction(_ops.multi_margin_loss)
multilabel_margin_loss = _with_legacy_reduction(_ops.multilabel_margin_loss)
multilabel_soft_margin_loss = _with_legacy_reduction(_ops.multilabel_soft_margin_loss)
nll_loss = _with_legacy_reduction(_ops.nll_loss)
poisson_nll_loss = _with_legacy_reduction(_ops.poisson_nll_loss)
smooth_l1_loss = _with_legacy_reduction(_ops.smooth_l1_loss)
soft_margin_loss = _with_legacy_reduction(_ops.soft_margin_loss)
triplet_margin_loss = _with_legacy_reduction(_ops.triplet_margin_loss)

__all__ = [
    "one_hot",
    "pdist",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "celu_",
    "channel_shuffle",
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
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "elu_",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "fold",
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "leaky_relu_",
    "linear",
    "linear_cross_entropy",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "mish",
    "mse_loss",
    "multi_head_attention_forward",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "native_channel_shuffle",
    "nll_loss",
    "normalize",
    "pad",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "relu_",
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
    "triplet_margin_with_distance_loss",
    "unfold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]

_RARE = """
    BroadcastingList1 BroadcastingList2 BroadcastingList3 GRID_SAMPLE_INTERPOLATION_MODES
    GRID_SAMPLE_PADDING_MODES ScalingType SwizzleType Tensor assert_int_or_pair boolean_dispatch
    grad grouped_mm scaled_mm torch
"""
_OVERRIDES = """
    handle_torch_function has_torch_function has_torch_function_unary has_torch_function_variadic
"""
__getattr__ = _missing(
    "offgrad.nn.functional",
    (),
    {
        **dict.fromkeys(_RARE.split(), "offgrad.nn._rare_functions"),
        **dict.fromkeys(_OVERRIDES.split(), "offgrad.overrides"),
    },
)

_name_functions(globals())
