"""Phrases of PyTorch's errors about layers and losses that code and people match on."""

from typing import Any

import pytest

from tests.known_phrases import Programs, check


def indices(lib: Any, *shape: int) -> Any:
    return lib.zeros(*shape, dtype=lib.long)


def loss(name: str, *args: Any, **options: Any) -> Any:
    """Return a program that calls a loss with tensors of ones; (long, *shape) is of zeros."""

    def run(lib: Any) -> None:
        tensors = [
            indices(lib, *each[1:])
            if each and each[0] is int
            else (lib.ones(*each) if isinstance(each, tuple) else each)
            for each in args
        ]
        getattr(lib.nn.functional, name)(*tensors, **options)

    return run


LOSSES: Programs = {
    "Please ensure they have the same size": loss("mse_loss", (4, 3), (4, 1)),
    "var is of incorrect size": loss("gaussian_nll_loss", (4, 3), (4, 3), (2,)),
    "var has negative entry/entries": lambda lib: lib.nn.functional.gaussian_nll_loss(
        lib.ones(2), lib.ones(2), -lib.ones(2)
    ),
    "between 0 and 1": lambda lib: lib.nn.BCELoss()(lib.full((2,), 2.0), lib.ones(2)),
    "Using a target size (": loss("binary_cross_entropy", (4, 3), (4, 1)),
    "expects 2D": loss("cosine_embedding_loss", (4, 3, 2), (4, 3, 2), (4,)),
    "1D target tensor expected": loss("cosine_embedding_loss", (4, 3), (4, 3), (4, 1)),
    "1D target tensor expects 2D input tensors": loss("cosine_embedding_loss", (4,), (4,), (4,)),
    "0D target tensor expects 1D input tensors": lambda lib: (
        lib.nn.functional.cosine_embedding_loss(lib.ones(4, 3), lib.ones(4, 3), lib.ones(()))
    ),
    "label_smoothing must be between 0.0": loss(
        "cross_entropy", (4, 3), (int, 4), label_smoothing=1.5
    ),
    "Expected floating point type for target with class probabilities": loss(
        "cross_entropy", (4, 3), (int, 4, 3)
    ),
    "weight tensor should be defined either for all": lambda lib: lib.nn.functional.cross_entropy(
        lib.ones(4, 3), indices(lib, 4), lib.ones(2)
    ),
    "ignore_index is not supported for floating point target": loss(
        "cross_entropy", (4, 3), (4, 3), ignore_index=1
    ),
    "expected target dtype to be Long or Byte": lambda lib: lib.nn.functional.nll_loss(
        lib.ones(4, 3), lib.zeros(4, dtype=lib.int32)
    ),
    "Target size (torch.Size([4])) must be the same as input size (torch.Size([4, 1]))": loss(
        "binary_cross_entropy_with_logits", (4, 1), (4,)
    ),
    "Expected target size": loss("cross_entropy", (4, 3, 2), (int, 4, 5)),
    "target tensor should be 1-D with size equal to": loss("multi_margin_loss", (4, 3), (int, 2)),
    "expected weight to be None or 1D tensor, got 2D instead": lambda lib: lib.nn.MultiMarginLoss(
        weight=lib.ones(2, 2)
    ),
    "log_probs tensor must not be empty": lambda lib: lib.nn.functional.ctc_loss(
        lib.ones(0, 2, 3), indices(lib, 2, 1), indices(lib, 2), indices(lib, 2)
    ),
    "delta must be a float or int": lambda lib: lib.nn.HuberLoss(delta=1j),
}

POOLING: Programs = {
    "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size": lambda lib: (
        lib.nn.ReflectionPad2d(1)(lib.ones(1, 0, 2, 2))
    ),
    "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input": lambda lib: (
        lib.nn.functional.max_pool2d(lib.ones(0, 3, 2, 0), 2)
    ),
    "pad should be at most half of effective kernel size": lambda lib: lib.nn.functional.max_pool2d(
        lib.ones(1, 3, 8, 8), 2, padding=2
    ),
    "Input dimension should be at least 3": lambda lib: lib.nn.functional.adaptive_avg_pool2d(
        lib.ones(4), (2, 2)
    ),
    "Input dimension should be at least 4": lambda lib: lib.nn.functional.adaptive_max_pool3d(
        lib.ones(4, 2), (2, 2, 2)
    ),
    "requires output_ratio to either be a single Int or tuple of Ints": lambda lib: (
        lib.nn.functional.fractional_max_pool2d(lib.ones(1, 2, 8, 8), 2, output_ratio=(0.5,) * 3)
    ),
}

PADDING: Programs = {
    "expected 2D or 3D input (got 4D input)": lambda lib: lib.nn.CircularPad1d(1)(
        lib.ones(1, 2, 3, 4)
    ),
    "Padding size should be less than the corresponding input dimension": lambda lib: (
        lib.nn.ReflectionPad1d(5)(lib.ones(1, 2, 3))
    ),
    "is not supported for 4D input tensor": lambda lib: lib.nn.ReflectionPad1d(1)(
        lib.ones(1, 2, 3, 4)
    ),
    "Supported combinations for non-constant padding": lambda lib: lib.nn.ReplicationPad2d(1)(
        lib.ones(1, 2)
    ),
}

RECURRENT: Programs = {
    "Expected hidden to be 1D or 2D, got 4D instead": lambda lib: lib.nn.GRUCell(3, 2)(
        lib.ones(4, 3), lib.ones(1, 1, 4, 2)
    ),
    "input.size(-1) must be equal to input_size": lambda lib: lib.nn.GRU(3, 2)(lib.ones(4, 1, 5)),
    "proj_size argument is only supported for LSTM, not RNN or GRU": lambda lib: lib.nn.GRU(
        3, 4, proj_size=2
    ),
    "bias should be of type bool, got: int": lambda lib: lib.nn.LSTM(3, 2, bias=1),
    "batch_first should be of type bool, got: int": lambda lib: lib.nn.RNN(3, 2, batch_first=1),
    "input_size must be greater than zero": lambda lib: lib.nn.GRU(0, 2),
    "hidden_size must be greater than zero": lambda lib: lib.nn.GRU(2, 0),
    "num_layers must be greater than zero": lambda lib: lib.nn.GRU(2, 1, num_layers=0),
    "input_size should be of type int, got: float": lambda lib: lib.nn.LSTM(2.0, 2),
    "hidden_size should be of type int, got: float": lambda lib: lib.nn.LSTM(2, 2.0),
    "array must be sorted in decreasing order when `enforce_sorted` is True": lambda lib: (
        lib.nn.utils.rnn.pack_padded_sequence(lib.ones(4, 2, 3), [1, 4])
    ),
    "Cannot pack empty tensors": lambda lib: lib.nn.utils.rnn.pack_padded_sequence(
        lib.ones(0, 0, 3), []
    ),
}

EMBEDDINGS: Programs = {
    "input has to be 1D or 2D Tensor": lambda lib: lib.nn.EmbeddingBag(3, 2)(indices(lib, 1, 1, 1)),
    "Expected idx >= 0 && idx < num_embeddings": lambda lib: lib.nn.EmbeddingBag(3, 2, mode="max")(
        lib.tensor([[5]])
    ),
    "padding_idx must be within the number of embeddings": lambda lib: (
        lib.nn.functional.embedding_bag(indices(lib, 1, 1), lib.ones(3, 2), padding_idx=5)
    ),
    "max mode does not support sparse weights": lambda lib: lib.nn.functional.embedding_bag(
        indices(lib, 1, 1), lib.ones(3, 2), mode="max", sparse=True
    ),
}


def attend(*shapes: Any, **options: Any) -> Any:
    """Return a program that calls MultiheadAttention with query, key, value and masks of ones."""

    def run(lib: Any) -> None:
        masks = {name: lib.ones(*shape).bool() for name, shape in options.items()}
        lib.nn.MultiheadAttention(8, 2)(*(lib.ones(*shape) for shape in shapes), **masks)

    return run


BATCHED, UNBATCHED = (4, 2, 8), (4, 8)

ATTENTION: Programs = {
    "expected `key` and `value` to be 3-D but found 2-D and 3-D tensors respectively": attend(
        BATCHED, UNBATCHED, BATCHED
    ),
    "expected `key` and `value` to be 2-D but found 3-D and 2-D tensors respectively": attend(
        UNBATCHED, BATCHED, UNBATCHED
    ),
    "expected `key_padding_mask` to be `None` or 2-D but found 1-D tensor instead": attend(
        *[BATCHED] * 3, key_padding_mask=(4,)
    ),
    "expected `key_padding_mask` to be `None` or 1-D but found 2-D tensor instead": attend(
        *[UNBATCHED] * 3, key_padding_mask=(4, 2)
    ),
    "expected `attn_mask` to be `None`, 2-D or 3-D but found 1-D tensor instead": attend(
        *[BATCHED] * 3, attn_mask=(4,)
    ),
    "Expected `attn_mask` shape to be (2, 4, 4)": attend(*[UNBATCHED] * 3, attn_mask=(5, 4, 4)),
}

CONVOLUTION: Programs = {
    "Calculated padded input size per channel: (4). Kernel size: (10). Kernel size can't be "
    "greater than actual input size": lambda lib: lib.nn.Conv1d(1, 1, 10)(lib.ones(1, 1, 4)),
    "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size": lambda lib: (
        lib.nn.Conv2d(1, 1, 1)(lib.ones(4, 4))
    ),
    "Expected 2D (unbatched) or 3D (batched) input to conv1d, but got input of size": lambda lib: (
        lib.nn.Conv1d(1, 1, 1)(lib.ones(4))
    ),
    "Calculated padded input size per channel: (4 x 6). Kernel size: (5 x 5)": lambda lib: (
        lib.nn.Conv2d(1, 1, 5)(lib.ones(1, 1, 4, 6))
    ),
}


def grid_sample(*shapes: tuple[int, ...], **options: Any) -> Any:
    return lambda lib: lib.nn.functional.grid_sample(
        *(lib.ones(*shape) for shape in shapes), align_corners=False, **options
    )


RESAMPLING: Programs = {
    "but got: 'garbage'": grid_sample((1, 1, 2, 2), (1, 1, 1, 2), mode="garbage"),
    "padding_mode to be 'zeros', 'border', or 'reflection', but got: 'rubbish'": grid_sample(
        (1, 1, 2, 2), (1, 1, 1, 2), padding_mode="rubbish"
    ),
    "expected grid to have size 2 in last dimension": grid_sample((1, 1, 2, 2), (1, 1, 1, 3)),
    "expected grid and input to have same batch size": grid_sample((2, 1, 2, 2), (1, 1, 1, 2)),
    "expected input to have non-empty spatial dimensions": grid_sample((1, 1, 0, 2), (1, 1, 1, 2)),
    "bicubic interpolation only supports 4D input": grid_sample(
        (1, 1, 2, 2, 2), (1, 1, 1, 1, 3), mode="bicubic"
    ),
    "Expected a batch of 2D affine matrices of shape Nx2x3": lambda lib: (
        lib.nn.functional.affine_grid(lib.ones(1, 2, 4), (1, 1, 2, 2), align_corners=False)
    ),
    "Expected a batch of 3D affine matrices of shape Nx3x4": lambda lib: (
        lib.nn.functional.affine_grid(lib.ones(1, 2, 3), (1, 1, 2, 2, 2), align_corners=False)
    ),
    "affine_grid only supports 4D and 5D sizes": lambda lib: lib.nn.functional.affine_grid(
        lib.ones(1, 2, 3), (1, 1, 2), align_corners=False
    ),
    "Expected theta to have floating point type": lambda lib: lib.nn.functional.affine_grid(
        indices(lib, 1, 2, 3), (1, 1, 2, 2), align_corners=False
    ),
    "expected size to be one of int or": lambda lib: lib.nn.functional.interpolate(
        lib.ones(1, 1, 2, 2), size=[1.5, 2.5]
    ),
}

ARGUMENTS: Programs = {
    "eps must be positive": lambda lib: lib.nn.BatchNorm1d(3, eps=0.0)(lib.ones(2, 3)),
    "dropout probability has to be between 0 and 1, but got": lambda lib: lib.nn.Dropout(1.5),
    "which is not used because affine=False": lambda lib: lib.nn.InstanceNorm1d(4, affine=False)(
        lib.ones(2, 3, 4)
    ),
    "in1_features must be > 0": lambda lib: lib.nn.Bilinear(0, 1, 1),
    "be divisible by the product of kernel_size": lambda lib: lib.nn.Fold((4, 5), (2, 3))(
        lib.ones(1, 5, 6)
    ),
    "match the calculated number of sliding blocks": lambda lib: lib.nn.Fold((4, 5), (2, 3))(
        lib.ones(1, 6, 5)
    ),
    "calculated shape of the array of sliding blocks as": lambda lib: lib.nn.Unfold((9, 9))(
        lib.ones(1, 1, 4, 4)
    ),
    "cutoffs should be a sequence of unique,": lambda lib: lib.nn.AdaptiveLogSoftmaxWithLoss(
        4, 9, [5, 3]
    ),
    "Input and target should have the same size": lambda lib: lib.nn.AdaptiveLogSoftmaxWithLoss(
        4, 9, [3]
    )(lib.ones(2, 4), indices(lib, 3)),
    "Target values should be in": lambda lib: lib.nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3])(
        lib.ones(1, 4), lib.tensor([20])
    ),
    "Number of groups to divide channels in must be positive": lambda lib: (
        lib.nn.functional.channel_shuffle(lib.ones(1, 4, 2), 0)
    ),
    "Number of channels must be divisible by groups": lambda lib: lib.nn.functional.channel_shuffle(
        lib.ones(1, 4, 2), 3
    ),
    "channel_shuffle expects input with > 2 dims,": lambda lib: lib.nn.functional.channel_shuffle(
        lib.ones(1, 4), 2
    ),
    "must be tuple of ints, but found element of type float at pos 2": lambda lib: lib.nn.Unflatten(
        1, (1, 2, 3.0)
    ),
    "Initializing zero-element tensors is a no-op": lambda lib: lib.nn.Linear(0, 3),
}

CHECKS: Programs = {
    "expected 2D or 3D input (got 4D input)": lambda lib: lib.nn.BatchNorm1d(3)(
        lib.ones(1, 3, 2, 2)
    ),
    "expected at least 2D input (got 1D input)": lambda lib: lib.nn.SyncBatchNorm(3)(lib.ones(3)),
    "expected 3D or 4D input (got 2D input)": lambda lib: lib.nn.InstanceNorm2d(3)(lib.ones(3, 3)),
    "Expected more than 1 value per channel when training": lambda lib: lib.nn.BatchNorm1d(3)(
        lib.ones(1, 3)
    ),
    "running_mean should contain": lambda lib: lib.nn.BatchNorm1d(3)(lib.ones(2, 4)),
    "expected input with shape [*, 3]": lambda lib: lib.nn.LayerNorm(3)(lib.ones(2, 4)),
    "must be divisible by num_groups (2)": lambda lib: lib.nn.GroupNorm(2, 3),
    "to be divisible by num_groups": lambda lib: lib.nn.functional.group_norm(lib.ones(2, 3), 2),
    "embed_dim must be divisible by num_heads": lambda lib: lib.nn.MultiheadAttention(5, 2),
    "in_channels must be divisible by groups": lambda lib: lib.nn.Conv2d(3, 4, 1, groups=2),
    "padding='same' is not supported for strided convolutions": lambda lib: lib.nn.Conv2d(
        4, 3, 1, padding="same", stride=2
    ),
    "Expected input to be 2D or 3D": lambda lib: lib.nn.LSTM(3, 2)(lib.ones(1, 1, 1, 3)),
    "For batched 3-D input, hx should also be 3-D but got": lambda lib: lib.nn.GRU(3, 2)(
        lib.ones(1, 1, 3), lib.ones(1, 2)
    ),
    "For unbatched 2-D input, hx should also be 2-D but got": lambda lib: lib.nn.GRU(3, 2)(
        lib.ones(1, 3), lib.ones(1, 1, 2)
    ),
    "Expected hidden[0] size": lambda lib: lib.nn.LSTM(3, 2)(
        lib.ones(1, 1, 3), (lib.ones(2, 1, 2), lib.ones(1, 1, 2))
    ),
    "Expected hidden size": lambda lib: lib.nn.GRU(3, 2)(lib.ones(1, 1, 3), lib.ones(2, 1, 2)),
    "dropout should be a number in range [0, 1]": lambda lib: lib.nn.GRU(3, 2, dropout=2),
    "dropout option adds dropout after all but last recurrent layer": lambda lib: lib.nn.GRU(
        3, 2, dropout=0.5
    ),
    "proj_size has to be smaller than hidden_size": lambda lib: lib.nn.LSTM(3, 2, proj_size=2),
    "proj_size should be a positive integer or zero": lambda lib: lib.nn.LSTM(3, 2, proj_size=-1),
    "Length of all samples has to be greater than 0": lambda lib: (
        lib.nn.utils.rnn.pack_padded_sequence(lib.ones(2, 1, 1), [0])
    ),
    "Expected `len(lengths)` to be equal to batch_size": lambda lib: (
        lib.nn.utils.rnn.pack_padded_sequence(lib.ones(2, 1, 1), [1, 1])
    ),
    "either size or scale_factor should be defined": lambda lib: lib.nn.functional.interpolate(
        lib.ones(1, 1, 2, 2)
    ),
    "only one of size or scale_factor should be defined": lambda lib: lib.nn.functional.interpolate(
        lib.ones(1, 1, 2, 2), size=2, scale_factor=2
    ),
    "align_corners option can only be set with the interpolating modes": lambda lib: (
        lib.nn.functional.interpolate(lib.ones(1, 1, 2, 2), size=2, align_corners=True)
    ),
    "is not a valid value for reduction": lambda lib: lib.nn.functional.mse_loss(
        lib.ones(1), lib.ones(1), reduction="x"
    ),
    "Implicit dimension choice for softmax has been deprecated": lambda lib: (
        lib.nn.functional.softmax(lib.ones(1))
    ),
    "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions": lambda lib: (
        lib.nn.init.xavier_uniform_(lib.ones(2))
    ),
    "Mode x not supported": lambda lib: lib.nn.init.kaiming_uniform_(lib.ones(2, 2), mode="x"),
    "Only tensors with 3, 4, or 5 dimensions are supported": lambda lib: lib.nn.init.dirac_(
        lib.ones(2)
    ),
    "Only tensors with 2 dimensions are supported": lambda lib: lib.nn.init.eye_(lib.ones(3)),
    "Only tensors with 2 or more dimensions are supported": lambda lib: lib.nn.init.orthogonal_(
        lib.ones(3)
    ),
    "mean is more than 2 std from [a, b] in nn.init.trunc_normal_": lambda lib: (
        lib.nn.init.trunc_normal_(lib.ones(3), mean=9.0)
    ),
}

PROGRAMS: Programs = {**LOSSES, **POOLING, **PADDING, **RECURRENT, **EMBEDDINGS} | {
    **ATTENTION,
    **CONVOLUTION,
    **RESAMPLING,
    **ARGUMENTS,
    **CHECKS,
}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(phrase: str) -> None:
    check(PROGRAMS, phrase)
