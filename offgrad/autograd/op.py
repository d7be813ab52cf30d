"""Op: a differentiable operation; its instance is the node of the graph."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offgrad.autograd import anomaly, grad_mode, saved_tensor
from offgrad.autograd.node import (
    Edge,
    Grads,
    Node,
    gradient_edge,
)
from offgrad.autograd.replay import replay_of
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import is_differentiable, wrap
from offgrad.autograd.views import (
    CUSTOM,
    OUTSIDE,
    SEVERAL_OUTPUTS,
    requires_grad,
    view_chain,
    view_of,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Array: TypeAlias = NDArray[Any]

registry: list[type["Op"]] = []
"""Every op class; a test checks that each has a specification."""


class Op(Node):
    """One operation in one place: `forward` on arrays, `backward` on tensors.

    A subclass defines::

        def forward(self, *arrays, **parameters): ...   # an array, or a tuple of arrays
        def backward(self, *grads): ...                 # a tensor or None for each input

    `forward` calls ``self.save(slot=array)`` for arrays that backward needs, inputs, outputs or
    new arrays, and sets plain attributes for other values; ``needs_input_grad`` says which
    gradients backward will compute. `backward` reads ``self.saved(slot)`` and is written in
    differentiable operations, so that gradients of gradients need no second formula.
    """

    _saved: dict[str, SavedTensor]
    _saves: Mapping[str, Array | None] = MappingProxyType({})

    # Whether outputs share the memory of the first input. Then forward must return NumPy views that
    # depend only on its parameters, because it is re-run on other arrays.
    is_view: ClassVar[bool] = False
    # Whether each output shares the memory of the input with the same number instead.
    views_each_input: ClassVar[bool] = False
    # Whether a view may have elements that its input, if a view itself, does not have.
    reaches_outside: ClassVar[bool] = False
    # Whether forward takes hardly longer than reading its inputs and writing its outputs, which
    # depend only on the inputs and parameters. A policy may then re-run it instead of holding its
    # outputs.
    is_recomputable: ClassVar[bool] = False
    # The name that PyTorch prints, where it is not that of the class with the suffix.
    torch_name: ClassVar[str] = ""
    # The suffix that PyTorch appends to the name.
    suffix: ClassVar[str] = "Backward0"

    def __init_subclass__(cls, alias: bool = False) -> None:
        if not alias:
            registry.append(cls)
        # PyTorch's name of the class of such nodes.
        cls.__name__ = cls.__dict__.get("torch_name") or cls.__name__ + cls.suffix

    def forward(self, *arrays: Any, **parameters: Any) -> Any:
        """Return the output array or arrays."""
        raise NotImplementedError

    def backward(self, *grads: Any) -> Any:
        """Return the gradient of each input, None where there is none."""
        raise NotImplementedError

    @classmethod
    @cache
    def named(cls, name: str) -> "type[Self]":
        """Return this operation under another name that PyTorch prints for it."""
        return type(name, (cls,), {"torch_name": name, "__module__": cls.__module__}, alias=True)

    def save(self, /, **slots: Array | None) -> None:
        """Save arrays for backward under the names of `slots`; None is skipped.

        They are prefetched in this order, so it should be the order in which backward uses them.
        """
        self._saves = slots

    def saved(self, slot: str) -> "Tensor":
        """Return the tensor saved under `slot`."""
        return self._saved[slot].unpack()

    @classmethod
    def apply(cls, *inputs: "Tensor | None", **parameters: Any) -> "Tensor":
        """Run the operation on tensors; return its one output.

        It is recorded if grad mode is on and an input requires grad.
        """
        output: Tensor = cls.apply_all(*inputs, **parameters)[0]
        return output

    @classmethod
    def apply_all(cls, *inputs: "Tensor | None", **parameters: Any) -> "tuple[Any, ...]":
        """Run the operation as `apply` does; return all outputs, None where forward did."""
        recorded = False
        if grad_mode.state.grad_enabled:
            needs = tuple([requires_grad(each) for each in inputs])
            recorded = True in needs
        node = cls()
        node.needs_input_grad = needs if recorded else (False,) * len(inputs)
        arrays = [None if tensor is None else tensor._array for tensor in inputs]
        if len(arrays) > 1:
            _separate_aliases(inputs, arrays)
        # As in PyTorch, infinities and NaN appear in the results without a warning.
        with np.errstate(all="ignore"):
            result = node.forward(*arrays, **parameters)
        results = result if type(result) is tuple else (result,)
        outputs: list[Any]
        if cls.is_view:
            outputs = cls._views(node, inputs, results, parameters, result is results)
        else:
            outputs = [None if array is None else wrap(array) for array in results]
        if recorded:
            if anomaly.state.enabled:
                anomaly.record_line(node)
            node.next_functions = tuple(
                [(None, 0) if tensor is None else gradient_edge(tensor) for tensor in inputs]
            )
            metadata: list[tuple[tuple[int, ...], Any]] = []
            for output in outputs:
                if output is None:
                    metadata.append(((), None))
                    continue
                array = output._array
                if is_differentiable(array.dtype):
                    output._requires_grad = True
                    output._grad_fn, output._output_nr = node, len(metadata)
                metadata.append((array.shape, array.dtype))
            node.output_metadata = tuple(metadata)
            if node._saves:
                node._saved = {}
            hooks = saved_tensor.state.hooks
            if cls.is_recomputable and hooks and hooks[-1].needs_replay:
                node.replay = replay_of(node, inputs, arrays, outputs, parameters)
            if node._saves:
                node._save_all(inputs, arrays, results, outputs)
        return tuple(outputs)

    @classmethod
    def _views(
        cls,
        node: "Op",
        inputs: "tuple[Tensor | None, ...]",
        results: tuple[Array, ...],
        parameters: Mapping[str, Any],
        several: bool,
    ) -> list[Any]:
        blocked_by = None
        if cls.views_each_input:
            blocked_by = CUSTOM.format(node.name())
        elif several:
            blocked_by = SEVERAL_OUTPUTS.format(node.name())
        views = []
        for output_nr, array in enumerate(results):
            source: Any = inputs[output_nr if cls.views_each_input else 0]
            if cls.reaches_outside and source._base is not None:
                blocked_by = OUTSIDE
            steps = view_chain(source, cls, parameters, output_nr, blocked_by)
            views.append(view_of(array, source, steps))
        return views

    def _save_all(
        self,
        inputs: "tuple[Tensor | None, ...]",
        arrays: "list[Array | None]",
        results: tuple[Array, ...],
        outputs: "list[Any]",
    ) -> None:
        saved = self._saved
        for slot, array in self._saves.items():
            if array is None:
                # As in PyTorch, slots that backward does not need are None.
                setattr(self, slot, None)
            else:
                found = self._tensor_of(array, inputs, arrays, results, outputs)
                tensor, edge, is_output, is_own = found
                saved[slot] = SavedTensor(tensor, self, slot, edge, is_output, is_own)
        del self._saves

    def _tensor_of(
        self,
        array: Array,
        inputs: "tuple[Tensor | None, ...]",
        arrays: "list[Array | None]",
        results: tuple[Array, ...],
        outputs: "list[Any]",
    ) -> "tuple[Tensor, Edge, bool, bool]":
        """Return the tensor of a saved array, the edge of its gradient, whether it is an output,
        and whether forward made the array for backward alone.
        """
        # One array object belongs to one tensor: `_separate_aliases` ensures it.
        for index, candidate in enumerate(arrays):
            if array is candidate:
                tensor: Any = inputs[index]
                return tensor, self.next_functions[index], False, False
        for index, candidate in enumerate(results):
            if array is candidate:
                return outputs[index], (None, index), True, False
        for tensor in (*inputs, *outputs):
            # A view: it shares the version of the memory.
            if tensor is not None and np.may_share_memory(array, tensor._array):
                return wrap(array, tensor._storage), (None, 0), False, True
        return wrap(array), (None, 0), False, True

    def run(self, grads: Grads) -> Grads:
        """Run `backward`."""
        with self.lock:
            result = self.backward(*grads)
        return result if type(result) is tuple else (result,)


def _separate_aliases(inputs: "tuple[Tensor | None, ...]", arrays: "list[Array | None]") -> None:
    """Give tensors that share one array object, such as x and ``x.detach()``, one view each."""
    first_inputs: dict[int, Tensor | None] = {}
    for index, array in enumerate(arrays):
        tensor = inputs[index]
        if array is not None and first_inputs.setdefault(id(array), tensor) is not tensor:
            arrays[index] = array.view()
