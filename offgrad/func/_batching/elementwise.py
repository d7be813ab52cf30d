"""Rules of functions of single elements, which broadcast, and of losses that are made of them."""

from typing import Any

from offgrad.autograd.tensor_base import TensorBase, metadata, numpy_dtype
from offgrad.func._batching.arguments import named_arguments
from offgrad.func._batching.batched import (
    Level,
    NotBatchedError,
    aligned,
    expanded,
    is_batched,
    mapped,
    ndim_of,
    samples_of,
    shape_of,
    stand_in,
)
from offgrad.func._batching.dispatch import exists, outputs, refuse_unbatched, register
from offgrad.ops._core.dtypes import common_dtype

_NAMES = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2
arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip complex conj conj_physical
copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2 expm1 fix float_power floor
floor_divide fmax fmin fmod frac frexp gcd ge greater greater_equal gt heaviside hypot i0 igamma
igammac isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp less less_equal
lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
logit lt maximum minimum mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal
polar polygamma positive pow rad2deg real reciprocal relu relu6 remainder round rsqrt rsub selu sgn
sigmoid sign signbit sin sinc sinh softshrink softsign sqrt square sub subtract tan tanh tanhshrink
threshold true_divide trunc xlogy celu elu gelu hardshrink hardsigmoid hardswish hardtanh
leaky_relu logsigmoid mish silu softplus imag resolve_conj resolve_neg
airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx expit gammainc gammaincc gammaln i0e i1
i1e log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1
multigammaln ndtr ndtri psi scaled_modified_bessel_k0 scaled_modified_bessel_k1
spherical_bessel_j0 xlog1py zeta
view_as_complex view_as_real
clone detach contiguous float double half bfloat16 long int short char byte bool cfloat cdouble cpu
zeros_like ones_like empty_like full_like
alias_copy detach_copy view_as_real_copy view_as_complex_copy
"""

_IN_PLACE = "zero_ copy_"

_OF_ONE_SAMPLE = """
numpy item tolist backward register_hook retain_grad register_post_accumulate_grad_hook
__contains__ is_nonzero allclose equal data_ptr storage untyped_storage
"""

_LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div l1_loss mse_loss
poisson_nll_loss smooth_l1_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss
"""


_WEIGHTED = {"mse_loss", "l1_loss", "huber_loss"}
"""Their mean is over the sum of the weights."""


def _promoted(values: list[Any], tensors: list[Any], level: Level) -> list[Any]:
    """Return arguments with samples without dimensions in the dtype to which those of one sample
    are promoted: the dimension of the samples would make them count as much as others.
    """
    operands = [each for each in tensors if numpy_dtype(each).kind != "b"]
    if len({numpy_dtype(each) for each in operands}) < 2:
        return values
    wanted = common_dtype(*operands)
    if common_dtype(*[samples_of(each, level) for each in operands]) == wanted:
        return values
    return [
        each.to(wanted)
        if is_batched(each, level) and not ndim_of(each) and numpy_dtype(each).kind != "b"
        else each
        for each in values
    ]


def _aligned_arguments(func: Any, args: Any, kwargs: dict[str, Any], level: Level) -> Any:
    """Return arguments whose tensors broadcast for all samples as they do for one."""
    values = [*args, *kwargs.values()]
    tensors = [each for each in values if isinstance(each, TensorBase)]
    if len(tensors) > 1:
        ndim = max([metadata(each).ndim for each in tensors])
        # Of those in place the first keeps its dtype, and float_power converts all.
        if not (func.__name__.endswith("_") or func.__name__ == "float_power"):
            values = _promoted(values, tensors, level)
        values = [
            aligned(each, level, ndim) if isinstance(each, TensorBase) else each for each in values
        ]
    else:
        values = [each._value if is_batched(each, level) else each for each in values]
    return values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))


def elementwise(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """The function of all samples at once."""
    if kwargs.get("out") is not None:
        return NotImplemented
    given, options = _aligned_arguments(func, args, kwargs, level)
    return outputs(func(*given, **options), level)


def in_place(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """The same, of functions that change their first argument."""
    target = args[0]
    refuse_unbatched(func, target, level)
    if any(
        isinstance(each, TensorBase) and ndim_of(each) > ndim_of(target)
        for each in (*args, *kwargs.values())
    ):
        return NotImplemented
    given, options = _aligned_arguments(func, args, kwargs, level)
    func(*given, **options)
    return target


def where(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``where`` with two choices; positions alone have as many rows as there are."""
    if len(args) + len(kwargs) < 3:
        return NotImplemented
    return elementwise(func, level, args, kwargs)


def masked_fill(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``masked_fill``; a value of each sample is chosen by ``where``."""
    if len(args) != 3 or not is_batched(args[2], level):
        return elementwise(func, level, args, kwargs)
    source, mask, value = args
    return value.to(source.dtype).where(mask, source)


def of_matrices(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of matrices, or of batches of them."""
    return elementwise(func, level, args, kwargs) if ndim_of(args[0]) > 1 else NotImplemented


def fill(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``fill_``, also with a value for each sample."""
    if len(args) == 2 and is_batched(args[1], level):
        return args[0].copy_(args[1])
    return in_place(func, level, args, kwargs)


def needs_one_sample(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function that needs one sample."""
    raise NotBatchedError(f"{func.__name__} needs one sample")


def with_grad(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``requires_grad_`` and ``detach_``, which return their argument."""
    func(args[0]._value, *args[1:], **kwargs)
    return args[0]


def conversion(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """``x.to(...)`` and the like; of another tensor only the dtype counts."""
    source, *others = args
    if not is_batched(source, level):
        return func(source, *map(stand_in, others), **mapped(stand_in, kwargs))
    return outputs(func(source._value, *map(stand_in, others), **mapped(stand_in, kwargs)), level)


def loss(func: Any, level: Level, args: Any, kwargs: dict[str, Any]) -> Any:
    """A loss: of each element, then reduced for each sample."""
    given = named_arguments(func, args, kwargs)
    if given is None:
        return NotImplemented
    reduction = given.get("reduction", "mean")
    if reduction == "batchmean" and ndim_of(given["input"]):
        given["reduction"] = "sum"
        return loss(func, level, (), given) / shape_of(given["input"])[0]
    if reduction == "mean" and given.get("weight") is not None and func.__name__ in _WEIGHTED:
        return NotImplemented
    if reduction not in ("mean", "sum", "none") or not (
        given.get("size_average") is None and given.get("reduce") is None
    ):
        return NotImplemented
    source, target, *others = [each for each in given.values() if isinstance(each, TensorBase)]
    if shape_of(source) == shape_of(target):
        if any(ndim_of(each) > ndim_of(source) for each in others):
            return NotImplemented
        # Some refuse tensors that only broadcast to the same shape.
        options = {
            key: _fitted(each, level, source) if isinstance(each, TensorBase) else each
            for key, each in given.items()
        }
    elif reduction == "mean":
        return NotImplemented
    else:
        _, options = _aligned_arguments(func, (), given, level)
    options["reduction"] = "none"
    result = func(**options)
    if reduction != "none" and result.ndim > 1:
        result = result.flatten(1)
        result = result.mean(1) if reduction == "mean" else result.sum(1)
    return outputs(result, level)


def _fitted(value: Any, level: Level, source: Any) -> Any:
    """Return all samples of a tensor of the shape of `source`; another broadcasts."""
    if shape_of(value) == shape_of(source):
        return expanded(value, level)
    return aligned(value, level, ndim_of(source))


def install() -> None:
    """Register the rules."""
    names = _NAMES.split()
    register(elementwise, *names)
    changing = [f"{each}_" for each in names if exists(f"{each}_")]
    register(in_place, *changing, *_IN_PLACE.split())
    register(where, "where")
    register(masked_fill, "masked_fill")
    register(of_matrices, "tril", "triu")
    register(fill, "fill_")
    register(needs_one_sample, *filter(exists, _OF_ONE_SAMPLE.split()))
    register(with_grad, "requires_grad_", "detach_")
    register(conversion, "to", "type", "type_as")
    register(loss, *_LOSSES.split())
