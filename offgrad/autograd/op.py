"""Op: a differentiable operation; its instance is the node of the graph."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from offgrad_storage.interrupts import MaskedLock

from offgrad.autograd import anomaly, grad_mode, saved_tensor
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.meta import forward_of_shapes, metered_inputs
from offgrad.autograd.node import (
    Edge,
    Gradients,
    Grads,
    Node,
    OutputMetadata,
    accumulator,
    as_tensors,
)
from offgrad.autograd.out_of_memory import name_backward, name_forward
from offgrad.autograd.replay import replay_of
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, is_differentiable, wrap
from offgrad.autograd.views import (
    CUSTOM,
    OUTSIDE,
    SEVERAL_OUTPUTS,
    requires_grad,
    view_chain,
    view_of,
)
from offgrad.memory import POOL_THRESHOLD, OutOfMemoryError, forks
from offgrad.memory.meta import MetaArray, meters, reserved, shapes_only

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Array: TypeAlias = NDArray[Any]

_modes, _new, _ndarray = grad_mode.state, object.__new__, np.ndarray
_NO_EDGE: Edge = (None, 0)

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
    differentiable operations, so that gradients of gradients need no second formula. Where it uses
    operators alone, which arrays have as well, it sets ``backward_takes_arrays``: a pass that
    records nothing then runs it on small arrays, without the cost of an operation for each of its
    steps.
    """

    _saved: dict[str, SavedTensor]
    _saves: Mapping[str, Array | None] = MappingProxyType({})
    # Whether `backward` is running on arrays.
    _on_arrays = False
    # Whether an input was on the meta device.
    _on_meta = False

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
    # Whether each element of the output depends on those at its place in inputs of the same shape.
    is_elementwise: ClassVar[bool] = False
    # Whether `backward` can run on arrays of real floating point numbers, `saved` returning arrays.
    # It returns new arrays or its arguments, no views of them.
    backward_takes_arrays: ClassVar[bool] = False
    # Only hooks run code of the user.
    runs_user_code = False
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

    @classmethod
    def with_samples(cls, size: int, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """Return the parameters for `size` inputs stacked; None if each must be computed alone."""
        return parameters if cls.is_elementwise else None

    def save(self, /, **slots: Array | None) -> None:
        """Save arrays for backward under the names of `slots`; None is skipped.

        They are prefetched in this order, so it should be the order in which backward uses them.
        """
        self._saves = slots

    def saved(self, slot: str) -> "Tensor":
        """Return the tensor saved under `slot`; its array while `backward` runs on arrays."""
        saved = self._saved[slot]
        return saved.unpack_array() if self._on_arrays else saved.unpack()  # type: ignore[return-value]

    @classmethod
    def apply(cls, *inputs: "Tensor | None", **parameters: Any) -> "Tensor":
        """Run the operation on tensors; return its one output.

        It is recorded if grad mode is on and an input requires grad.
        """
        output: Tensor = cls._apply(inputs, parameters)[0]
        return output

    @classmethod
    def apply_all(cls, *inputs: "Tensor | None", **parameters: Any) -> "tuple[Any, ...]":
        """Run the operation as `apply` does; return all outputs, None where forward did."""
        return tuple(cls._apply(inputs, parameters))

    @classmethod
    def compute(cls, *inputs: Any, **parameters: Any) -> Any:
        """Run the operation as `apply` does; on arrays, return the array that forward computes.

        For gradients that are operations of their own, in a `backward` that takes arrays.
        """
        if not isinstance(inputs[0], np.ndarray):
            return cls.apply(*inputs, **parameters)
        node = _new(cls)
        node.needs_input_grad = (False,) * len(inputs)
        return node.forward(*inputs, **parameters)

    @classmethod
    def _apply(cls, inputs: "tuple[Tensor | None, ...]", parameters: dict[str, Any]) -> list[Any]:
        if meters:
            inputs = metered_inputs(inputs)
        recorded, grad_enabled = False, _modes.grad_enabled
        arrays: list[Array | None] = []
        needs = []
        for each in inputs:
            need = False
            if each is None:
                arrays.append(None)
            else:
                if grad_enabled:
                    need = each._requires_grad if each._base is None else requires_grad(each)
                    if need:
                        recorded = True
                arrays.append(each._array)
            needs.append(need)
        node = _new(cls)
        node.needs_input_grad = tuple(needs)
        if len(arrays) == 2:
            first = arrays[0]
            # One array object belongs to one tensor, such as x or ``x.detach()``.
            if first is arrays[1] and first is not None and inputs[0] is not inputs[1]:
                arrays[1] = first.view()
        elif len(arrays) > 2:
            _separate_aliases(inputs, arrays)
        # As in PyTorch, infinities and NaN appear in the results without a warning.
        previous = ignore_float_errors()
        try:
            if reserved and MetaArray in map(type, arrays):
                result = forward_of_shapes(node, inputs, arrays, parameters)
            else:
                result = node.forward(*arrays, **parameters)
        except OutOfMemoryError as error:
            name_forward(error, node, inputs)
            raise
        finally:
            restore_float_errors(previous)
        outputs: list[Any]
        if cls.is_view:
            outputs = cls._views(node, inputs, result, parameters)
        elif type(result) is tuple:
            outputs = [None if array is None else wrap(array) for array in result]
        else:
            outputs = [wrap(result)]
        if recorded:
            node._record(inputs, arrays, result, outputs, parameters)
        return outputs

    def _record(
        self,
        inputs: "tuple[Tensor | None, ...]",
        arrays: "list[Array | None]",
        result: Any,
        outputs: list[Any],
        parameters: dict[str, Any],
    ) -> None:
        """Make this the node of `outputs`, and save for backward."""
        self.begin()
        if anomaly.state.enabled:
            anomaly.record_line(self)
        edges: list[Edge] = []
        for tensor in inputs:
            if tensor is None or not tensor._requires_grad:
                edges.append(_NO_EDGE)
            elif tensor._grad_fn is None:
                edges.append((accumulator(tensor), 0))
            else:
                edges.append((tensor._grad_fn, tensor._output_nr))
        self.next_functions = tuple(edges)
        for number, output in enumerate(outputs):
            if output is not None and is_differentiable(output._array.dtype):
                output._requires_grad = True
                output._grad_fn = self
                if number:
                    output._output_nr = number
        self.output_metadata = _metadata_of(outputs)
        if self._saves:
            self._saved = {}
        if self.is_recomputable:
            hooks = saved_tensor.state.hooks
            if hooks:
                needs_replay = hooks[-1].needs_replay
            else:
                needs_replay = outputs[0]._array.nbytes >= saved_tensor.DEFAULT_MIN_NBYTES
            if needs_replay:
                self.replay = replay_of(self, inputs, arrays, outputs, parameters)
        if self._saves:
            results = result if type(result) is tuple else (result,)
            self._save_all(inputs, arrays, results, outputs)

    @classmethod
    def _views(
        cls,
        node: "Op",
        inputs: "tuple[Tensor | None, ...]",
        result: Any,
        parameters: Mapping[str, Any],
    ) -> list[Any]:
        blocked_by = None
        several = type(result) is tuple
        results = result if several else (result,)
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
        saved, first_result = self._saved, results[0]
        for slot, array in self._saves.items():
            if array is None:
                # As in PyTorch, slots that backward does not need are None.
                setattr(self, slot, None)
                continue
            if array is first_result:
                saved[slot] = SavedTensor(outputs[0], self, slot, _NO_EDGE, True)
                continue
            # One array object belongs to one tensor: `_separate_aliases` ensures it.
            for index, candidate in enumerate(arrays):
                if array is candidate:
                    edge = self.next_functions[index]
                    saved[slot] = SavedTensor(inputs[index], self, slot, edge)  # type: ignore[arg-type]
                    break
            else:
                saved[slot] = self._save_other(slot, array, inputs, results, outputs)
        del self._saves

    def _save_other(
        self,
        slot: str,
        array: Array,
        inputs: "tuple[Tensor | None, ...]",
        results: tuple[Array, ...],
        outputs: "list[Any]",
    ) -> SavedTensor:
        """Save a further output, a view, or an array that forward made for backward alone."""
        for index, candidate in enumerate(results):
            if array is candidate:
                return SavedTensor(outputs[index], self, slot, (None, index), True)
        for tensor in (*inputs, *outputs):
            # A view: it shares the version of the memory.
            if tensor is not None and np.may_share_memory(array, tensor._array):
                view = wrap(array, tensor._storage)
                return SavedTensor(view, self, slot, _NO_EDGE, False, True)
        return SavedTensor(wrap(array), self, slot, _NO_EDGE, False, True)

    def is_plain(self, grad: Any) -> bool:
        """Whether `backward` may compute with the arrays of `grad` and of saved tensors, which it
        holds meanwhile: nothing is recorded, and nobody looks at its operations.
        """
        return not (
            self._on_arrays
            or _modes.grad_enabled
            or observers
            or meters
            or type(grad) is not TensorBase.tensor_class
            or type(grad._array) is not _ndarray
        )

    def run(self, grads: Grads) -> Grads:
        """Run `backward`."""
        if self._on_meta:
            with shapes_only():
                return self._run(grads)
        return self._run(grads)

    def _run(self, grads: Grads) -> Grads:
        with self.lock:
            # An unpack hook may run backward through this node while it runs on arrays.
            outer, self._on_arrays = self._on_arrays, False
            try:
                result = self.backward(*grads)
            except OutOfMemoryError as error:
                name_backward(error, self)
                raise
            finally:
                self._on_arrays = outer
        return result if type(result) is tuple else (result,)

    def run_unrecorded(self, grads: Gradients) -> Gradients:
        """Run `backward`, on arrays where it takes them and they are small."""
        if not self.backward_takes_arrays:
            return self.run(as_tensors(grads))
        arrays = []
        for each in grads:
            array: Any = each
            if type(each) is not _ndarray and isinstance(each, TensorBase):
                array = each._array
            if array is None or array.dtype.kind != "f" or array.nbytes >= POOL_THRESHOLD:
                return self.run(as_tensors(grads))
            arrays.append(array)
        with self._lock if self._lock_checked_at == forks.count else self.lock:
            previous = ignore_float_errors()
            outer, self._on_arrays = self._on_arrays, True
            try:
                result = self.backward(*arrays)
            except OutOfMemoryError as error:
                name_backward(error, self)
                raise
            finally:
                self._on_arrays = outer
                restore_float_errors(previous)
        outputs = result if type(result) is tuple else (result,)
        for index, array in enumerate(arrays):
            for output in outputs:
                if output is array:
                    # Memory that is passed on keeps one storage, whose version counts changes.
                    grad = grads[index]
                    tensor = grad if isinstance(grad, TensorBase) else wrap(array)
                    outputs = tuple([tensor if each is array else each for each in outputs])
                    break
        return outputs


_known_metadata: dict[Any, OutputMetadata] = {}
_MAX_KNOWN = 4096


def _metadata_of(outputs: "list[Tensor | None]") -> OutputMetadata:
    """Return shape and dtype of each output; nodes with one output share equal ones."""
    if len(outputs) != 1 or outputs[0] is None:
        return tuple(
            [
                ((), None) if each is None else (each._array.shape, each._array.dtype)
                for each in outputs
            ]
        )
    array = outputs[0]._array
    key = array.shape, array.dtype
    metadata = _known_metadata.get(key)
    if metadata is None:
        if len(_known_metadata) >= _MAX_KNOWN:
            _known_metadata.clear()
        metadata = _known_metadata[key] = (key,)
    return metadata


OpObserver: TypeAlias = Callable[..., list[Any]]
"""Called as ``observer(apply, cls, inputs, parameters)`` for each operation; returns the result of
``apply(cls, inputs, parameters)``.
"""

_plain_apply = Op.__dict__["_apply"]
observers: list[OpObserver] = []
_observers_lock = MaskedLock(reentrant=True)


def add_op_observer(observer: OpObserver) -> None:
    """Run all operations through `observer`, around the observers before it."""
    with _observers_lock:
        observers.append(observer)
        _apply_observed()


def remove_op_observer(observer: OpObserver) -> None:
    """Undo one `add_op_observer`."""
    with _observers_lock:
        if observer in observers:
            observers.remove(observer)
        _apply_observed()


def _apply_observed() -> None:
    """Give `Op` the method that runs operations; without observers, the plain one."""
    apply = _plain_apply.__func__
    for observer in observers:
        apply = partial(observer, apply)
    observed = apply

    def _apply(cls: type[Op], inputs: Any, parameters: dict[str, Any]) -> list[Any]:
        result: list[Any] = observed(cls, inputs, parameters)
        return result

    Op._apply = classmethod(_apply) if observers else _plain_apply  # type: ignore[method-assign, assignment]


def _separate_aliases(inputs: "tuple[Tensor | None, ...]", arrays: "list[Array | None]") -> None:
    """Give tensors that share one array object, such as x and ``x.detach()``, one view each."""
    first_inputs: dict[int, Tensor | None] = {}
    for index, array in enumerate(arrays):
        tensor = inputs[index]
        if array is not None and first_inputs.setdefault(id(array), tensor) is not tensor:
            arrays[index] = array.view()
