"""backward and grad: the public functions that check their arguments and run the engine."""

import warnings
from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offgrad.autograd import engine
from offgrad.autograd.engine import as_tuple, run
from offgrad.autograd.forward_mode import for_tangents, forward_mode, has_tangent
from offgrad.autograd.node import Edge, GradientEdge, gradient_edge
from offgrad.autograd.tensor_base import TensorBase, describe, metadata, wrap
from offgrad.memory import zeros
from offgrad.memory.meta import MetaArray, as_meta

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

    TensorOrEdge: TypeAlias = Tensor | GradientEdge
    Inputs: TypeAlias = TensorOrEdge | Sequence[TensorOrEdge] | dict[str, Tensor]


def backward(
    tensors: "TensorOrEdge | Sequence[TensorOrEdge]",
    grad_tensors: "Tensor | Sequence[Tensor | None] | None" = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: "Tensor | Sequence[Tensor | None] | None" = None,
    inputs: "Inputs | None" = None,
) -> None:
    """Accumulate the gradients of the sum of `tensors` into ``.grad`` of the leaves.

    Args:
        tensors: the roots: tensors that require grad, or gradient edges.
        grad_tensors: the gradient of each root; may be None for one-element tensors.
        retain_graph: keep the saved tensors, so that another backward can follow; defaults to
            `create_graph`.
        create_graph: record the backward pass too, for gradients of gradients.
        grad_variables: the old name of `grad_tensors`; deprecated.
        inputs: accumulate into these tensors, or the leaves at these gradient edges, only. A dict
            counts as its values.

    Raises:
        RuntimeError: if a root does not require grad, a root of several elements has no gradient,
            or the graph was freed.
    """
    if grad_variables is not None:
        warnings.warn(
            "`grad_variables` is deprecated. Use `grad_tensors` instead.",
            FutureWarning,
            stacklevel=2,
        )
        if grad_tensors is not None:
            raise RuntimeError(
                "`grad_tensors` and `grad_variables` (deprecated) are the same argument; pass only "
                "`grad_tensors`"
            )
        grad_tensors = grad_variables
    roots, grads = _roots(tensors, grad_tensors, "backward")
    if isinstance(inputs, dict):
        inputs = tuple(inputs.values())
    targets = None if inputs is None else as_tuple(inputs)
    if targets is not None and not targets:
        raise RuntimeError("backward(): `inputs` cannot be empty; leave it out to reach all leaves")
    retain = create_graph if retain_graph is None else retain_graph
    if forward_mode.levels:
        retain = retain or any(map(has_tangent, as_tuple(tensors)))  # for the tangents of results
    if create_graph:
        _warn_of_cycles()
    if targets is None:
        run(roots, grads, retain, create_graph, None)
        return
    edges = [
        _edge(target, index, "gradients exist for", "input") for index, target in enumerate(targets)
    ]
    for target in targets:
        if isinstance(target, TensorBase):
            target.retain_grad()
    run(roots, grads, retain, create_graph, edges, accumulate=True)


_has_warned_of_cycles = False


def _warn_of_cycles() -> None:
    """Warn, once in the process as PyTorch does, of what a recorded backward pass leaves behind."""
    global _has_warned_of_cycles
    if not _has_warned_of_cycles:
        _has_warned_of_cycles = True
        warnings.warn(
            "backward() with create_graph=True makes a reference cycle: the .grad of a parameter "
            "has a graph that leads back to it. Use autograd.grad() instead, or set .grad to None "
            "afterwards",
            UserWarning,
            stacklevel=3,
        )


def grad(
    outputs: "TensorOrEdge | Sequence[TensorOrEdge]",
    inputs: "Inputs",
    grad_outputs: "Tensor | Sequence[Tensor | None] | None" = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Return the gradients of the sum of `outputs` with respect to each of `inputs`.

    Args:
        outputs: the roots: tensors that require grad, or gradient edges.
        inputs: the tensors or gradient edges to differentiate with respect to; a dict of them
            gives a dict.
        grad_outputs: the gradient of each output; may be None for one-element tensors.
        retain_graph: keep the saved tensors; defaults to `create_graph`.
        create_graph: record the backward pass too, for gradients of gradients.
        only_inputs: deprecated and ignored.
        allow_unused: return None for inputs the outputs do not depend on, instead of raising;
            defaults to `materialize_grads`.
        is_grads_batched: the first dimension of `grad_outputs` counts gradients; the results have
            it, too. One pass computes all where the operations can.
        materialize_grads: return zeros for inputs the outputs do not depend on.

    Raises:
        RuntimeError: as `backward`; and for an unused input, unless `allow_unused`.
    """
    if isinstance(inputs, dict):
        options = (allow_unused, is_grads_batched, materialize_grads)
        values = list(inputs.values())
        found = grad(outputs, values, grad_outputs, retain_graph, create_graph, True, *options)
        return dict(zip(inputs, found, strict=True))
    if not only_inputs:
        warnings.warn(
            "only_inputs is ignored: grad() returns gradients of its inputs; backward() "
            "accumulates those of all leaves",
            FutureWarning,
            stacklevel=2,
        )
    if is_grads_batched and grad_outputs is not None:
        retain = create_graph if retain_graph is None else retain_graph
        unused = materialize_grads if allow_unused is None else allow_unused
        found = _batched(outputs, inputs, grad_outputs, retain, create_graph, unused)
        if not materialize_grads:
            return found
        return tuple(
            [
                each.new_zeros(each.shape) if gradient is None else gradient
                for gradient, each in zip(found, as_tuple(inputs), strict=True)
            ]
        )
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "materialize_grads=True fills unused inputs, so allow_unused must not be False"
        )
    if forward_mode.levels and not create_graph and any(map(has_tangent, as_tuple(outputs))):
        # Recorded for the tangents of gradients, which need the graph.
        unused = materialize_grads if allow_unused is None else allow_unused
        found = grad(
            outputs,
            inputs,
            grad_outputs,
            True,
            True,
            allow_unused=unused,
            materialize_grads=materialize_grads,
        )
        return tuple([for_tangents(each) for each in found])
    roots, grads = _roots(outputs, grad_outputs, "grad")
    targets = as_tuple(inputs)
    if not targets:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty: pass a tensor")
    edges = [
        _edge(target, index, "gradients exist for", "input") for index, target in enumerate(targets)
    ]
    retain = create_graph if retain_graph is None else retain_graph
    input_grads = run(roots, grads, retain, create_graph, edges)
    if materialize_grads:
        return tuple(
            wrap(zeros(*node.output_metadata[output_nr]), requires_grad=create_graph)
            if grad is None and node
            else grad
            for (node, output_nr), grad in zip(edges, input_grads, strict=True)
        )
    if not allow_unused:
        for index, each in enumerate(input_grads):
            if each is None:
                raise _unused(index, targets[index])
    return tuple(input_grads)


def release(outputs: Any, inputs: Any) -> None:
    """Free the graph between tensors or gradient edges."""
    roots = [_edge(each, index, "", "tensor")[0] for index, each in enumerate(outputs)]
    targets = [_edge(each, index, "", "input") for index, each in enumerate(inputs)]
    engine.release([each for each in roots if each is not None], targets)


def _batched(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool,
) -> "tuple[Tensor | None, ...]":
    """Return `grad` for each entry of the first dimension of `grad_outputs`, stacked."""
    roots, batches = as_tuple(outputs), as_tuple(grad_outputs)
    for index, (root, each) in enumerate(zip(roots, batches, strict=True)):
        if each is not None and each.shape[1:] != root.shape:
            raise RuntimeError(
                "If `is_grads_batched=True`, we interpret the first dimension of each grad_output "
                f"as a batch; the others must be the output's, but grad_output[{index}] is a "
                f"{describe(each)} for a {describe(root)}"
            )
    counts = {each.shape[0] for each in batches if each is not None}
    if len(counts) != 1:
        raise ValueError(
            "is_grads_batched=True needs the same number of gradients for all outputs, got "
            f"{sorted(counts)}"
        )
    import_module("offgrad.func")  # sets the function
    found = grads_for_all(roots, as_tuple(inputs), batches, retain_graph, create_graph)
    if not allow_unused:
        for index, each in enumerate(found):
            if each is None:
                raise _unused(index, as_tuple(inputs)[index])
    return tuple(found)


grads_for_all: Any = None
"""Computes gradients for several gradients of the outputs; set by `offgrad.func`."""


def _unused(index: int, target: Any) -> RuntimeError:
    return RuntimeError(
        f"input {index} of grad(){_target_text(target)}, appears to not have been used: grad() "
        "needs inputs that the outputs come from. Set allow_unused=True to get None for it"
    )


def clear_grad(tensor: "Tensor", set_to_none: bool) -> None:
    """Drop ``.grad`` of `tensor`, or fill it with zeros, as ``zero_grad`` does."""
    grad = tensor.grad
    if set_to_none or grad is None:
        tensor.grad = None
        return
    if grad.is_leaf:  # it may be a view, which `detach_` refuses
        grad.requires_grad_(False)
    else:
        grad.detach_()
    grad.zero_()


def _target_text(target: Any) -> str:
    return f", a {describe(target)}" if isinstance(target, TensorBase) else ""


def _roots(tensors: Any, grad_tensors: Any, caller: str) -> "tuple[list[Edge], list[Tensor]]":
    """Return the edges of the roots, and their gradients."""
    roots = as_tuple(tensors)
    grads: Sequence[Tensor | None]
    if grad_tensors is None:
        grads = [None] * len(roots)
    else:
        grads = as_tuple(grad_tensors)
    for each in grads:
        if each is not None and not isinstance(each, TensorBase):
            raise TypeError(f"{caller}() takes tensors as gradients, got {type(each).__name__}")
    if len(grads) != len(roots):
        raise RuntimeError(
            f"{caller}() needs one gradient for each of {len(roots)} tensors, got {len(grads)}"
        )
    edges, root_grads = [], []
    for index, (root, root_grad) in enumerate(zip(roots, grads, strict=True)):
        edge = _edge(root, index, f"{caller}() begins at", "tensor")
        edges.append(edge)
        root_grad = _root_gradient(edge, root_grad, index, caller)
        if isinstance(root, TensorBase) and type(root._array) is MetaArray:
            root_grad = wrap(as_meta(root_grad._array))
        root_grads.append(root_grad)
    return edges, root_grads


def _edge(target: Any, index: int, rule: str, kind: str) -> Edge:
    """Return the edge of a tensor or of a `GradientEdge`."""
    if isinstance(target, GradientEdge):
        return target.node, target.output_nr
    if not isinstance(target, TensorBase):
        raise (TypeError if kind == "tensor" else RuntimeError)(
            f"{rule} tensors or gradient edges, but {kind} {index} is a {type(target).__name__}"
        )
    edge = gradient_edge(target)  # type: ignore[arg-type]
    if edge[0] is None:
        problem = (
            f"element {index} of tensors does not require grad and does not have a grad_fn"
            if kind == "tensor"
            else "One of the differentiated Tensors does not require grad"
        )
        raise RuntimeError(
            f"{problem}: {kind} {index} is a {describe(target)}; was it computed under no_grad(), "
            "or from tensors without requires_grad?"
        )
    return edge


def _root_gradient(edge: Edge, grad: "Tensor | None", index: int, caller: str) -> "Tensor":
    node, output_nr = edge
    assert node is not None
    shape, dtype = node.output_metadata[output_nr]
    if grad is None and dtype.kind == "f" and not shape:
        return wrap(np.array(1, dtype))
    root = f"{dtype.name} tensor of shape {list(shape)}"
    if grad is None:
        if prod(shape) != 1:
            raise RuntimeError(
                f"{caller}() can begin with gradient 1 only at a tensor of one element (grad can "
                f"be implicitly created only for scalar outputs), but tensor {index} is a {root}; "
                "reduce it, or pass the gradient"
            )
        if dtype.kind == "c":
            raise RuntimeError(
                f"grad can be implicitly created only for real scalar outputs, but tensor {index} "
                f"is a {root}; take its .real or abs(), or pass the gradient"
            )
        return wrap(np.ones(shape, dtype))
    spec = metadata(grad)
    if spec.shape != shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{index}] has a shape of {grad.shape} and "
            f"output[{index}] has a shape of torch.Size({list(shape)}); the gradient to begin "
            "with must have its tensor's shape"
        )
    if spec.dtype != dtype:
        if (spec.dtype.kind == "c") != (dtype.kind == "c"):
            raise RuntimeError(
                "a complex gradient and its tensor are required to have the same dtype, and a real "
                f"tensor has a real gradient, but gradient {index} is a {describe(grad)} for a "
                f"{root}; convert it with .to(dtype)"
            )
        grad = grad.to(dtype)
    return grad
