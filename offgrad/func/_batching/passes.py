"""Backward passes for several gradients at once: gradients are batched tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offgrad.autograd import gradients
from offgrad.autograd.op import Op, add_op_observer, remove_op_observer
from offgrad.autograd.override_state import state
from offgrad.autograd.tensor_base import TensorBase
from offgrad.func._batching import rules
from offgrad.func._batching.batched import (
    BatchedTensor,
    Level,
    NotBatchedError,
    aligned,
    batch,
    expanded,
    is_batched,
    levels_of,
    ndim_of,
    overrides_enabled,
    samples_of,
    shape_of,
)
from offgrad.func._batching.dispatch import public
from offgrad.ops._core.broadcasting import Broadcasting
from offgrad.ops._nn.convolution import Convolution, ConvolutionWeight


@overrides_enabled()
def grads_for_all(
    outputs: Any, inputs: Any, grad_outputs: Any, retain_graph: bool, create_graph: bool
) -> Any:
    """Return the gradients of `inputs` for each entry of the first dimension of `grad_outputs`.

    The operations of one backward pass compute all of them, or else there is a pass for each.

    Returns:
        For each input its gradients, stacked; None where `outputs` do not depend on it.
    """
    rules.install()
    (count,) = {shape_of(each)[0] for each in grad_outputs if each is not None}
    depth = max([level.depth for each in grad_outputs for level in levels_of(each)], default=-1)
    level = Level(count, max(depth + 1, len(state.levels)))
    rows = [None if each is None else batch(each, level) for each in grad_outputs]
    try:
        with _batched_pass():
            found = gradients.grad(outputs, inputs, rows, True, True, allow_unused=True)
    except NotBatchedError:
        pass
    else:
        if not retain_graph:
            gradients.release(outputs, inputs)
        values = [None if each is None else expanded(each, level) for each in found]
        if create_graph:
            return values
        return [None if each is None else each.detach() for each in values]
    passes = []
    for number in range(count):
        chosen = [None if each is None else each[number] for each in grad_outputs]
        retain = retain_graph or number + 1 < count
        passes.append(
            gradients.grad(outputs, inputs, chosen, retain, create_graph, allow_unused=True)
        )
    columns = zip(*passes, strict=True)
    return [None if column[0] is None else public("stack")(column) for column in columns]


gradients.grads_for_all = grads_for_all


@contextmanager
def _batched_pass() -> Iterator[None]:
    """A block in which a backward pass may begin with batched gradients."""
    add_op_observer(_apply)
    outer = state.is_batched_pass
    state.is_batched_pass = True
    try:
        yield
    finally:
        state.is_batched_pass = outer
        remove_op_observer(_apply)


def _apply(apply: Any, cls: type[Op], inputs: Any, parameters: dict[str, Any]) -> list[Any]:
    """Run an operation of batched tensors: at once if it can, or else for each sample."""
    level: Level | None = None
    for each in inputs:
        if type(each) is BatchedTensor and (level is None or each._level.depth > level.depth):
            level = each._level
    if level is None:
        result: list[Any] = apply(cls, inputs, parameters)
        return result
    if issubclass(cls, Broadcasting):
        ndim = max(ndim_of(each) for each in inputs if isinstance(each, TensorBase))
        given = tuple([aligned(each, level, ndim) for each in inputs])
        return [batch(each, level) for each in cls.apply_all(*given, **parameters)]
    if issubclass(cls, Convolution) and not any(is_batched(each, level) for each in inputs[1:]):
        value = inputs[0]._value
        merged = cls.apply(value.flatten(0, 1), *inputs[1:], **parameters)
        return [batch(merged.unflatten(0, (level.size, -1)), level)]
    if issubclass(cls, ConvolutionWeight):
        how = parameters["how"]
        groups = {**parameters, "how": how._replace(groups=level.size * how.groups)}
        channels = [expanded(each, level).transpose(0, 1).flatten(1, 2) for each in inputs]
        weight = cls.apply(*channels, **groups)
        return [batch(weight.unflatten(0, (level.size, -1)), level)]
    own = cls.with_samples(level.size, parameters)
    tensors = [each for each in inputs if isinstance(each, TensorBase)]
    if own is not None and (cls.is_elementwise or all(map(ndim_of, tensors))):
        given = tuple([None if each is None else _whole(each, level) for each in inputs])
        return [batch(each, level) for each in cls.apply_all(*given, **own)]
    return for_each_op(cls, level, inputs, parameters)


def _whole(value: Any, level: Level) -> Any:
    """Return all samples in memory of their own: kernels do not broadcast."""
    return expanded(value, level).contiguous()


def for_each_op(cls: type[Op], level: Level, inputs: Any, parameters: dict[str, Any]) -> list[Any]:
    """Run an operation for each sample, and return the stacked outputs."""
    values = [samples_of(each, level) for each in inputs]
    has_samples = [each is not value for each, value in zip(inputs, values, strict=True)]
    rows = [
        cls.apply_all(
            *[each[number] if own else each for each, own in zip(values, has_samples, strict=True)],
            **parameters,
        )
        for number in range(level.size)
    ]
    return [
        None if column[0] is None else batch(public("stack")(column), level)
        for column in zip(*rows, strict=True)
    ]
