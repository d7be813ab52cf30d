"""backward and grad: what users ask the engine for, and the checking of what they ask."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offgrad.autograd.engine import as_tuple, run
from offgrad.autograd.node import Edge, gradient_edge
from offgrad.autograd.tensor_base import TensorBase, describe

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


def backward(
    tensors: "Tensor | Sequence[Tensor]",
    grad_tensors: "Tensor | Sequence[Tensor | None] | None" = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: "Tensor | Sequence[Tensor] | None" = None,
) -> None:
    """Accumulate into ``.grad`` of the leaves the gradients of the sum of `tensors`.

    Args:
        tensors: where to begin; each requires grad.
        grad_tensors: for each of them the gradient to begin with; may be None for one-element
            tensors.
        retain_graph: keep what was saved, so that another backward can follow; defaults to
            `create_graph`.
        create_graph: record the backward pass too, for gradients of gradients.
        inputs: accumulate into these tensors only.

    Raises:
        RuntimeError: if a tensor does not require grad, has more than one element and no gradient,
            or the graph was freed.
    """
    roots, grads = _roots(tensors, grad_tensors, "backward")
    targets = None if inputs is None else as_tuple(inputs)
    if targets is not None and not targets:
        raise RuntimeError("backward() needs at least one tensor in inputs, got none; leave it out")
    retain = create_graph if retain_graph is None else retain_graph
    if targets is None:
        run(roots, grads, retain, create_graph, None)
        return
    edges = [_target_edge(target, index) for index, target in enumerate(targets)]
    for target in targets:
        target.retain_grad()
    run(roots, grads, retain, create_graph, edges, accumulate=True)


def grad(
    outputs: "Tensor | Sequence[Tensor]",
    inputs: "Tensor | Sequence[Tensor]",
    grad_outputs: "Tensor | Sequence[Tensor | None] | None" = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> "tuple[Tensor | None, ...]":
    """Return the gradients of the sum of `outputs` with respect to each of `inputs`.

    Args:
        outputs: where to begin; each requires grad.
        inputs: what to differentiate by.
        grad_outputs: for each output the gradient to begin with; may be None for one-element
            tensors.
        retain_graph: keep what was saved; defaults to `create_graph`.
        create_graph: record the backward pass too, for gradients of gradients.
        allow_unused: return None for inputs the outputs do not depend on, instead of raising;
            defaults to `materialize_grads`.
        is_grads_batched: not supported.
        materialize_grads: return zeros for inputs the outputs do not depend on.

    Raises:
        RuntimeError: as `backward`; and for an unused input, unless it is allowed.
    """
    if is_grads_batched:
        raise NotImplementedError(
            "is_grads_batched=True needs vmap, which offgrad does not have; call grad() in a loop"
        )
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "materialize_grads=True fills unused inputs, so allow_unused must not be False"
        )
    roots, grads = _roots(outputs, grad_outputs, "grad")
    targets = as_tuple(inputs)
    if not targets:
        raise ValueError("grad() needs at least one tensor in inputs, got none")
    edges = [_target_edge(target, index) for index, target in enumerate(targets)]
    retain = create_graph if retain_graph is None else retain_graph
    found = run(roots, grads, retain, create_graph, edges)
    if materialize_grads:
        return tuple(
            target.new_zeros(target.shape) if grad is None else grad
            for target, grad in zip(targets, found, strict=True)
        )
    if not allow_unused:
        for index, each in enumerate(found):
            if each is None:
                raise RuntimeError(
                    "every input of grad() must have been used to compute the outputs, but input "
                    f"{index}, a {describe(targets[index])}, was not; pass allow_unused=True to "
                    "get None for it"
                )
    return tuple(found)


def _roots(tensors: Any, grad_tensors: Any, caller: str) -> "tuple[list[Edge], list[Tensor]]":
    """Return where to begin, and with which gradients."""
    roots = as_tuple(tensors)
    grads: Sequence[Tensor | None]
    if grad_tensors is None:
        grads = [None] * len(roots)
    else:
        grads = as_tuple(grad_tensors)
    if len(grads) != len(roots):
        raise RuntimeError(
            f"{caller}() needs one gradient for each of {len(roots)} tensors, got {len(grads)}"
        )
    for kind, given_tensors in (("tensors", roots), ("gradients", grads)):
        for each in given_tensors:
            if each is not None and not isinstance(each, TensorBase):
                raise TypeError(f"{caller}() takes tensors as {kind}, got {type(each).__name__}")
    edges, first = [], []
    for index, (root, given) in enumerate(zip(roots, grads, strict=True)):
        if not root._requires_grad:
            raise RuntimeError(
                f"{caller}() begins at tensors that require grad and have a grad_fn, but tensor "
                f"{index}, a {describe(root)}, does not require grad; was it computed under "
                "no_grad(), or from tensors without requires_grad?"
            )
        edges.append(gradient_edge(root))
        first.append(_first_gradient(root, given, index, caller))
    return edges, first


def _first_gradient(root: "Tensor", given: "Tensor | None", index: int, caller: str) -> "Tensor":
    if given is None:
        if root._array.size != 1:
            raise RuntimeError(
                f"{caller}() can begin with gradient 1 only at a tensor of one element (grad can "
                f"be implicitly created only for scalar outputs), but tensor {index} is a "
                f"{describe(root)}; reduce it, or pass the gradient"
            )
        return root.new_ones(root.shape)
    if given._array.shape != root._array.shape:
        raise RuntimeError(
            f"the gradient to begin with must have its tensor's shape {list(root._array.shape)}, "
            f"but gradient {index} is a {describe(given)}"
        )
    if given._array.dtype != root._array.dtype:
        if given._array.dtype.kind == "c" and root._array.dtype.kind != "c":
            raise RuntimeError(
                f"the gradient of a real tensor must be real, got a {describe(given)}"
            )
        given = given.to(root._array.dtype)
    return given


def _target_edge(target: "Tensor", index: int) -> Edge:
    if not target._requires_grad:
        raise RuntimeError(
            f"gradients exist only for tensors that require grad, but input {index}, a "
            f"{describe(target)}, does not"
        )
    return gradient_edge(target)
