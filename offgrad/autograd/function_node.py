"""The node of a user-defined Function, and the context its forward and backward share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from offgrad.autograd.forward_mode import forward_mode
from offgrad.autograd.node import Grads, Node
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, describe, metadata, numpy_dtype, wrap
from offgrad.memory import zeros

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.function import Function


class FunctionCtx:
    """The context that a Function's `forward` and `backward` share: the ``ctx`` argument.

    Users may set attributes on it. Pass tensors that backward needs to `save_for_backward`, so that
    they are checked for in-place changes, offloaded by policies and freed with the graph.

    Attributes:
        needs_input_grad: for each argument of forward, whether its gradient is needed.
    """

    needs_input_grad: tuple[bool, ...]

    def __init__(self, node: "FunctionNode") -> None:
        self._node = ref(node)
        self._to_save: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._for_forward: tuple[Tensor | None, ...] = ()
        self._materialize_grads = True

    def __getattr__(self, name: str) -> Any:
        # In PyTorch ctx is the node, so that attributes of the node, such as metadata, exist here.
        node = self.__dict__["_node"]()
        if node is not None and not name.startswith("_") and hasattr(type(node), name):
            return object.__getattribute__(node, name)
        raise AttributeError(f"ctx has no attribute {name!r}; was it set in forward?")

    def save_for_backward(self, *tensors: "Tensor | None") -> None:
        """Save inputs, outputs or intermediate tensors; call it once, in forward."""
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, TensorBase):
                raise TypeError(
                    "save_for_backward can only save variables, tensors and None, got "
                    f"{type(tensor).__name__}; set other things as attributes of ctx"
                )
        self._to_save = tensors

    def save_for_forward(self, *tensors: "Tensor | None") -> None:
        """Keep tensors for `jvp`, within a level of forward differentiation; else do nothing."""
        if forward_mode.levels:
            self._for_forward = tensors

    @property
    def saved_tensors(self) -> "tuple[Tensor | None, ...]":
        """The tensors passed to `save_for_backward`, after a check for in-place changes.

        In `jvp` they are those passed to `save_for_forward`, if there are any.
        """
        if forward_mode.is_in_jvp and self._for_forward:
            return self._for_forward
        node = self._node()
        if node is None or self._to_save:
            return self._to_save
        return tuple(None if raw is None else raw.unpack() for raw in node._raw_saved_tensors)

    def mark_dirty(self, *tensors: "Tensor") -> None:
        """Declare inputs that forward changes in place; it must return them, too."""
        _check_tensors("mark_dirty", tensors)
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: "Tensor") -> None:
        """Declare outputs that do not require grad."""
        _check_tensors("mark_non_differentiable", tensors)
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether missing gradients reach backward as zeros (the default) or as None."""
        if not isinstance(value, bool):
            raise TypeError(f"set_materialize_grads takes a bool, got {value!r}")
        self._materialize_grads = value


def _check_tensors(method: str, tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, TensorBase):
            raise RuntimeError(f"{method} takes tensors, got {type(tensor).__name__}")


class FunctionNode(Node):
    """The node of a user-defined Function; it also has the attributes of its ctx.

    It has one edge for each argument that is a tensor.
    """

    runs_without_grad = True
    # In the order of the arguments of `save_for_backward`; None for None.
    _raw_saved_tensors: tuple[SavedTensor | None, ...] = ()

    def __init__(self, function: "type[Function]", arguments: Sequence[Any]) -> None:
        super().__init__()
        self.function = function
        self.ctx = FunctionCtx(self)
        # Shape and dtype of each tensor among the arguments, None for others.
        self._arguments = [
            (metadata(each).shape, metadata(each).dtype) if isinstance(each, TensorBase) else None
            for each in arguments
        ]

    def __getattr__(self, name: str) -> Any:
        if name != "ctx":
            try:
                return getattr(self.ctx, name)
            except AttributeError:
                pass
        return super().__getattr__(name)

    def run(self, grads: Grads) -> Grads:
        """Call the Function's backward and check the results; return those for tensor arguments."""
        if self.ctx._materialize_grads:
            grads = tuple(
                wrap(zeros(shape, dtype)) if grad is None and dtype is not None else grad
                for grad, (shape, dtype) in zip(grads, self.output_metadata, strict=True)
            )
        if forward_mode.is_transposing and self.function._has_jvp():
            transposed: Grads = self.function._transposed(self, grads)
            return transposed
        result = self.function._backward()(self.ctx, *grads)
        results = result if isinstance(result, tuple) else (result,)
        expected = len(self._arguments)
        if any(each is not None for each in results[expected:]) or len(results) < expected:
            raise RuntimeError(
                f"{self.name()} must return one gradient, or None, for each argument of forward, "
                f"but returned an incorrect number of gradients: {len(results)}, not {expected}"
            )
        edges = iter(self.next_functions)
        for index, (each, tensor) in enumerate(zip(results, self._arguments, strict=False)):
            target, output_nr = next(edges) if tensor is not None else (None, 0)
            if each is None:
                continue
            if not isinstance(each, TensorBase):
                raise RuntimeError(
                    f"expected Variable or None (got {type(each).__name__}) at index {index} of "
                    f"what {self.name()} returned"
                )
            if tensor is None:
                raise RuntimeError(
                    f"{self.name()} returned a gradient for position {index + 1}, where forward "
                    f"took no tensor: a {describe(each)}; return None there"
                )
            dtype = None if target is None else target.output_metadata[output_nr][1]
            if dtype is not None and numpy_dtype(each).kind == "c" and dtype.kind != "c":
                raise RuntimeError(
                    f"{self.name()} must return a real gradient for a real input, but returned a "
                    f"{describe(each)} at index {index} for a {dtype.name} input; take its .real"
                )
        return tuple(
            each
            for each, tensor in zip(results, self._arguments, strict=False)
            if tensor is not None
        )
