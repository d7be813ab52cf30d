"""Dual tensors for forward differentiation, as in ``torch.autograd.forward_ad``.

A dual tensor is a new output of a node that is recorded. `unpack_dual` computes the tangent of a
result by two backward passes to these nodes: the first is linear in its output gradient, and the
second, its derivative, multiplies by the transpose; there a Function's own `jvp` is called. So the
operations must be twice differentiable, and tensors that come from a dual tensor require grad, also
those that `no_grad` computes: their history is for tangents alone.
"""

import threading as _threading
from collections.abc import Iterator as _Iterator
from contextlib import contextmanager as _contextmanager
from typing import Any as _Any
from typing import NamedTuple as _NamedTuple

from offgrad._missing import missing as _missing
from offgrad.autograd import forward_mode as _forward_mode
from offgrad.autograd.gradients import grad as _grad
from offgrad.autograd.node import AccumulateGrad as _AccumulateGrad
from offgrad.autograd.node import GradientEdge as _GradientEdge
from offgrad.autograd.node import Grads as _Grads
from offgrad.autograd.node import Node as _Node
from offgrad.autograd.node import connect as _connect
from offgrad.autograd.node import gradient_edge as _gradient_edge
from offgrad.autograd.tensor_base import TensorBase as _TensorBase
from offgrad.autograd.tensor_base import is_differentiable as _is_differentiable
from offgrad.autograd.tensor_base import wrap as _wrap

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]


class UnpackedDualTensor(_NamedTuple):
    """A tensor and its tangent, None for tensors that do not depend on a dual tensor."""

    primal: _Any
    tangent: _Any


class _Dual(_Node):
    """The node of a dual tensor; gradients flow on to the primal, if it requires grad."""

    def __init__(self, primal: _Any, tangent: _Any) -> None:
        super().__init__()
        self.tangent = tangent
        edge = _gradient_edge(primal)
        if edge[0] is not None:
            self.next_functions = (edge,)
            self.needs_input_grad = (True,)

    def run(self, grads: _Grads) -> _Grads:
        return grads[: len(self.next_functions)]


class _State(_threading.local):
    """The levels of this thread; the only one is 0."""

    levels: tuple[_forward_mode.Level, ...] = ()


_state = _State()


def enter_dual_level() -> int:
    """Begin a level, in which dual tensors can be made; return its number.

    Raises:
        RuntimeError: inside another level.
    """
    if _state.levels:
        raise RuntimeError(
            "Nested forward mode AD is not supported at the moment: exit the level before, or "
            "differentiate the tangent by backward"
        )
    _state.levels = (_forward_mode.Level(),)
    _forward_mode.enter(_state.levels[0])
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """End a level: its dual tensors have no tangents any more.

    Args:
        level: its number; by default that of the innermost.

    Raises:
        RuntimeError: if it is not the innermost level.
    """
    current = len(_state.levels) - 1
    level = current if level is None else level
    if level != current or level < 0:
        raise RuntimeError(f"levels are left in reverse order: the last is {current}, got {level}")
    *outer, last = _state.levels
    _state.levels = tuple(outer)
    _forward_mode.leave(last)


@_contextmanager
def dual_level() -> _Iterator[int]:
    """Call `enter_dual_level`, and `exit_dual_level` at the end of the block."""
    level = enter_dual_level()
    try:
        yield level
    finally:
        exit_dual_level(level=level)


def make_dual(tensor: _Any, tangent: _Any, *, level: int | None = None) -> _Any:
    """Return a tensor with a tangent: results computed from it have tangents, too.

    Args:
        tensor: the primal, with which the result shares memory; floating point or complex.
        tangent: of the same shape.
        level: the number of the level; by default that of the innermost.

    Raises:
        RuntimeError: if there is no level, or the shapes differ, or one of the two is dual.
        ValueError: for other dtypes.
    """
    if not _state.levels if level is None else not 0 <= level < len(_state.levels):
        raise RuntimeError("no level exists for dual tensors: use `with forward_ad.dual_level()`")
    for kind, each in (("primal", tensor), ("tangent", tangent)):
        if not isinstance(each, _TensorBase):
            raise TypeError(f"make_dual takes tensors, but {kind} is a {type(each).__name__}")
        if not _is_differentiable(each._array.dtype):
            raise ValueError(
                f"Expected {kind} to be floating point or complex, got {each._array.dtype}"
            )
        if _duals_below(each)[0]:
            raise RuntimeError(
                f"the {kind} of a dual tensor has a forward gradient at the same level 0 itself, "
                "which is not supported"
            )
    if tensor._array.shape != tangent._array.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than its tensor: "
            f"{list(tensor._array.shape)}, got {list(tangent._array.shape)}"
        )
    node = _Dual(tensor, tangent)
    dual = _wrap(tensor._array, tensor._storage)
    _connect(dual, node)
    _state.levels[-1].add(node)
    return dual


def unpack_dual(tensor: _Any, *, level: int | None = None) -> UnpackedDualTensor:
    """Return a tensor without its tangent, and the tangent.

    The tangent can be differentiated by backward if the primals of the dual tensors require grad.

    Args:
        tensor: any tensor.
        level: the number of the level; by default that of the innermost.
    """
    if not isinstance(tensor, _TensorBase):
        raise TypeError(f"unpack_dual takes a tensor, got {type(tensor).__name__}")
    if not _state.levels:
        return UnpackedDualTensor(tensor, None)
    if level is not None and level >= len(_state.levels):
        raise RuntimeError(f"there is no level {level}, the innermost is {len(_state.levels) - 1}")
    result: _Any = tensor
    nodes, is_differentiable = _duals_below(result)
    if not nodes:
        return UnpackedDualTensor(result, None)
    primal = result if is_differentiable else result.detach()
    if nodes == [result.grad_fn]:
        return UnpackedDualTensor(primal, nodes[0].tangent)
    return UnpackedDualTensor(primal, _tangent(result, nodes, is_differentiable))


def _duals_below(tensor: _Any) -> tuple[list[_Any], bool]:
    """Return the nodes of the level's dual tensors in the tensor's history, and whether backward
    can differentiate the tensor.
    """
    duals = {node for level in _state.levels for node in level.duals}
    found: list[_Any] = []
    leads_to_leaves = tensor.grad_fn is None and tensor.requires_grad
    pending: list[tuple[_Node | None, bool]] = [(tensor.grad_fn, True)] if duals else []
    seen: set[tuple[_Node, bool]] = set()
    while pending:
        node, for_gradients = pending.pop()
        for_gradients = for_gradients and _forward_mode.leads_to_gradients(node)
        if node is None or (node, for_gradients) in seen:
            continue
        seen.add((node, for_gradients))
        if node in duals and node not in found:
            found.append(node)
        leads_to_leaves |= for_gradients and isinstance(node, _AccumulateGrad)
        pending += [(next_node, for_gradients) for next_node, _ in node.next_functions]
    return found, leads_to_leaves


def _tangent(output: _Any, nodes: list[_Any], is_differentiable: bool) -> _Any:
    """Return the product of the Jacobian of `output` by the dual tensors with their tangents."""
    create_graph = is_differentiable or any(node.tangent.requires_grad for node in nodes)
    dummy = output.new_zeros(output.shape).requires_grad_()
    edges = [_GradientEdge(node, 0) for node in nodes]
    with _forward_mode.forward_mode_with("is_transposing"):
        grads = _grad(output, edges, dummy, None, True, True, True)
    # The gradient may be the dummy itself, as that of a sum.
    chosen = [
        number for number, each in enumerate(grads) if each is not None and each.requires_grad
    ]
    if not chosen:
        return output.new_zeros(output.shape)
    with _forward_mode.outside(_state.levels[0]):
        (tangent,) = _grad(
            [grads[number] for number in chosen],
            dummy,
            [nodes[number].tangent for number in chosen],
            True,
            create_graph,
            True,
            True,
        )
    return output.new_zeros(output.shape) if tangent is None else tangent


__getattr__ = _missing("offgrad.autograd.forward_ad")
