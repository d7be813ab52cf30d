"""Rules of the functions of layers: convolutions, pooling, normalization, attention, losses."""

from typing import Any

from offgrad.autograd.tensor_base import TensorBase, metadata
from offgrad.func._batching.arguments import (
    default_of,
    first_name,
    has_parameter,
    named_arguments,
)
from offgrad.func._batching.batched import (
    Level,
    batch,
    expanded,
    is_batched,
    mapped,
    ndim_of,
    shape_of,
)
from offgrad.func._batching.dispatch import exists, outputs, register
from offgrad.func._batching.shapes import of_dimensions

_IMAGES = {
    1: """avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d lp_pool1d""",
    2: """avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d lp_pool2d pixel_shuffle
    pixel_unshuffle""",
    3: """avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d max_pool3d lp_pool3d""",
}
"""Functions of batches of images, by the number of dimensions of an image."""


def images(spatial: int) -> Any:
    """Return the rule of functions that treat each image alike: samples are more images."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        source, *others = args
        if not is_batched(source, level) or kwargs.get("out") is not None:
            return NotImplemented
        if any(isinstance(each, TensorBase) for each in (*others, *kwargs.values())):
            return NotImplemented
        if ndim_of(source) == spatial + 2:
            return _merged(lambda value: func(value, *others, **kwargs), source, level)
        if ndim_of(source) != spatial + 1:
            return NotImplemented
        return outputs(func(source._value, *others, **kwargs), level)

    return rule


def _merged(function: Any, source: Any, level: Level) -> Any:
    """Return the results of a function for which samples are more rows of the first dimension."""
    result = function(source._value.flatten(0, 1))
    sizes = (level.size, shape_of(source)[0])
    return outputs(mapped(lambda each: each.unflatten(0, sizes), result), level)


def rows(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function that treats each element of the first dimension alike."""
    if not is_batched(args[0], level) or ndim_of(args[0]) < 3:
        return NotImplemented
    return _merged(lambda value: func(value, *args[1:], **kwargs), args[0], level)


def blocks(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``unfold``: the function of images, or the method along a dimension."""
    rule = images(2) if has_parameter(func, "kernel_size") else of_dimensions("dimension")
    return rule(func, level, args, kwargs)


def pad(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``pad``, which counts from the last dimension."""
    given = named_arguments(func, args, kwargs)
    if given is None or not is_batched(given["input"], level):
        return NotImplemented
    source = given.pop("input")
    if given.get("mode", "constant") == "constant":
        return batch(func(source._value, **given), level)
    if ndim_of(source) != len(given["pad"]) // 2 + 2:
        return NotImplemented
    return _merged(lambda value: func(value, **given), source, level)


def convolution(spatial: int) -> Any:
    """Return the rule of a convolution: samples are more images, or more groups of channels."""

    def rule(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
        given = named_arguments(func, args, kwargs)
        if given is None:
            return NotImplemented
        source, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
        if ndim_of(source) == spatial + 1:
            given.update(input=source.unsqueeze(0), weight=weight, bias=bias)
            return rule(func, level, (), given).squeeze(0)
        if is_batched(weight, level):
            result = _grouped(func, level, source, weight, given)
        elif is_batched(source, level):
            own = None if is_batched(bias, level) else bias
            result = _merged(lambda value: func(value, weight, own, **given), source, level)
            bias = bias if own is None else None
        else:
            result = func(source, weight, None, **given)
        if bias is None:
            return result
        return result + bias.reshape(-1, *(1,) * spatial)

    return rule


def _grouped(func: Any, level: Level, source: Any, weight: Any, options: dict[str, Any]) -> Any:
    value, groups = expanded(source, level), options.pop("groups", 1)
    kernels = weight._value
    joined = value.transpose(0, 1).flatten(1, 2)
    result = func(joined, kernels.flatten(0, 1), None, groups=level.size * groups, **options)
    return batch(result.unflatten(1, (level.size, -1)).transpose(0, 1), level)


def layer_norm(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``layer_norm`` and ``rms_norm``; weights of each sample come after."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    weight, bias = given.get("weight"), given.get("bias")
    source = given["input"]
    if is_batched(source, level) and not (is_batched(weight, level) or is_batched(bias, level)):
        given.pop("input")
        return batch(func(source._value, **given), level)
    own = {key: each for key, each in given.items() if key not in ("weight", "bias")}
    result = func(own.pop("input"), **own)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def group_norm(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``group_norm``; weights of each sample come after."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    source, weight, bias = given.pop("input"), given.pop("weight", None), given.pop("bias", None)
    if is_batched(source, level):
        result = _merged(lambda value: func(value, **given), source, level)
    else:
        result = func(source, **given)
    return affine(result, weight, bias)


def affine(result: Any, weight: Any, bias: Any) -> Any:
    """Return channels times their weights and with their biases."""
    shape = (-1, *(1,) * (ndim_of(result) - 2))
    result = result if weight is None else result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


def batch_norm(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``batch_norm``: each sample is a batch of its own, whose channels stand side by side."""
    given = named_arguments(func, args, kwargs)
    if given is None or not isinstance(given["input"], TensorBase):
        return NotImplemented
    source, weight, bias = given.pop("input"), given.pop("weight", None), given.pop("bias", None)
    mean, var = given.pop("running_mean", None), given.pop("running_var", None)
    if ndim_of(source) < 2:
        return NotImplemented
    is_training = given.get("training", default_of(func, "training"))
    if is_training and mean is not None and not is_batched(mean, level):
        raise RuntimeError(
            "Batch norm got a batched tensor as input while the running_mean or running_var, which "
            "will be updated in place, were not batched: use functional_call with batched buffers, "
            "track_running_stats=False, or replace_all_batch_norm_modules_"
        )
    count = shape_of(source)[1]
    value = expanded(source, level).transpose(0, 1).flatten(1, 2)
    statistics: list[Any] = [
        None if each is None else expanded(each, level).reshape(-1) for each in (mean, var)
    ]
    own = {"running_mean": statistics[0], "running_var": statistics[1], "weight": None}
    result = func(value, **own, bias=None, **given)
    if is_training and mean is not None:
        for running, new in zip((mean, var), statistics, strict=True):
            if new.untyped_storage().data_ptr() != running._value.untyped_storage().data_ptr():
                running._value.copy_(new.view(level.size, count))
    result = batch(result.unflatten(1, (level.size, count)).transpose(0, 1), level)
    return affine(result, weight, bias)


def attention(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``scaled_dot_product_attention``: samples are more heads."""
    given = named_arguments(func, args, kwargs)
    if given is None or given.get("dropout_p"):
        return NotImplemented
    names = [first_name(func), "key", "value"]
    ndim = max(ndim_of(given[each]) for each in names)
    for each in names:
        given[each] = expanded(given[each], level, ndim)
    mask = given.get("attn_mask")
    if mask is not None:
        given["attn_mask"] = expanded(mask, level, ndim)
    return batch(func(**given), level)


def classification(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``nll_loss`` and ``cross_entropy``: of each row, then reduced for each sample."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    reduction, target = given.get("reduction", "mean"), given["target"]
    source, weight = given["input"], given.get("weight")
    has_classes = metadata(target).dtype.kind in "iu"
    if (
        reduction not in ("mean", "sum", "none")
        or not (given.get("size_average") is None and given.get("reduce") is None)
        or is_batched(weight, level)
        or ndim_of(source) != ndim_of(target) + has_classes
    ):
        return NotImplemented
    value, labels = expanded(source, level), expanded(target, level)
    if ndim_of(source) > 1:
        value, labels = value.flatten(0, 1), labels.flatten(0, 1)
    given.update(input=value, target=labels, reduction="none")
    losses = func(**given)
    if reduction == "none":
        return batch(
            losses.unflatten(0, (level.size, -1)) if ndim_of(source) > 1 else losses, level
        )
    total = losses.reshape(level.size, -1).sum(1)
    if reduction == "mean":
        count: Any = losses.numel() // level.size
        if has_classes:
            ignored = given.get("ignore_index", default_of(func, "ignore_index"))
            counted = (labels != ignored).to(value.dtype)
            if weight is not None:
                counted = counted * weight[labels.where(labels != ignored, labels * 0)]
            count = counted.reshape(level.size, -1).sum(1)
        total = total / count
    return batch(total, level)


def recurrent(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """Recurrent layers with the same weights for all samples, which are more sequences."""
    if len(args) != 9 or kwargs:
        return NotImplemented
    source, states, weights = args[:3]
    dropout, train, batch_first = args[5], args[6], args[8]
    is_single = isinstance(states, TensorBase)
    if (
        not isinstance(weights, (list, tuple))  # a packed sequence
        or any(is_batched(each, level) for each in weights)
        or (dropout and train)
        or ndim_of(source) != 3
    ):
        return NotImplemented

    def merged(value: Any, dim: int) -> Any:
        return expanded(value, level).movedim(0, dim).flatten(dim, dim + 1)

    def parted(value: Any, dim: int) -> Any:
        return batch(value.unflatten(dim, (level.size, -1)).movedim(dim, 0), level)

    dim = 0 if batch_first else 1
    hx = [merged(each, 1) for each in ([states] if is_single else states)]
    output, *last = func(merged(source, dim), hx[0] if is_single else hx, *args[2:])
    return (parted(output, dim), *[parted(each, 1) for each in last])


def cell(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A step of a recurrent layer with the same weights for all samples, which are more rows."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    source, states = given.pop("input"), given.pop("hx")
    tensors = [source, *([states] if isinstance(states, TensorBase) else states)]
    if any(is_batched(e, level) for e in given.values()) or any(ndim_of(e) != 2 for e in tensors):
        return NotImplemented
    rows, *hx = [expanded(each, level).flatten(0, 1) for each in tensors]
    result = func(rows, hx[0] if isinstance(states, TensorBase) else hx, **given)
    return outputs(mapped(lambda each: each.unflatten(0, (level.size, -1)), result), level)


def install() -> None:
    """Register the rules."""
    for spatial, names in _IMAGES.items():
        present = names.split()
        present += [f"{each}_with_indices" for each in present if exists(f"{each}_with_indices")]
        register(images(spatial), *present)
    register(rows, "interpolate", "upsample", "channel_shuffle")
    register(pad, "pad")
    register(blocks, "unfold")
    register(images(1), "fold")
    for spatial in (1, 2, 3):
        register(convolution(spatial), f"conv{spatial}d", f"conv_transpose{spatial}d")
    register(layer_norm, "layer_norm", "rms_norm")
    register(group_norm, "group_norm")
    register(batch_norm, "batch_norm")
    register(attention, "scaled_dot_product_attention")
    register(classification, "nll_loss", "cross_entropy")
    register(recurrent, "lstm", "gru", "rnn_tanh", "rnn_relu")
    register(cell, "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
