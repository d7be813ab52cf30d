"""Tensor: an array with a place in the graph. Its methods are the operations."""

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import ops
from offgrad._missing import no_attribute
from offgrad._tensor import overrides
from offgrad._tensor.attributes import Attributes
from offgrad._tensor.conversions import Conversions
from offgrad._tensor.fills import Fills
from offgrad._tensor.inplace import InPlaceMethods
from offgrad._tensor.legacy import legacy_tensor
from offgrad._tensor.methods import OperationMethods
from offgrad._tensor.new_tensors import NewTensors
from offgrad._tensor.operators import Operators
from offgrad._tensor.printing import text_of
from offgrad._tensor.rare_methods import RareMethods
from offgrad._tensor.storage_methods import StorageMethods
from offgrad._warning import warn_program
from offgrad.autograd import gradients
from offgrad.autograd.grad_mode import is_inference_mode_enabled
from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.autograd.node import AccumulateGrad, Node, gradient_edge
from offgrad.autograd.tensor_base import (
    TensorBase,
    describe,
    is_differentiable,
    load_array,
    metadata,
    plain_classes,
)
from offgrad.autograd.views import is_stale, refresh
from offgrad.ops._core.device import CPU
from offgrad.ops._core.dtypes import check_tensor, default_dtype
from offgrad.ops._core.factories import check_requires_grad, placed
from offgrad.ops._shape.permuting import expand_to
from offgrad.ops._shape.reshaping import View, reshape_to

if TYPE_CHECKING:
    from collections.abc import Sequence


class Tensor(
    OperationMethods,
    InPlaceMethods,
    Operators,
    Attributes,
    Conversions,
    NewTensors,
    Fills,
    StorageMethods,
    RareMethods,
):
    """An n-dimensional array of one dtype that can take part in automatic differentiation.

    `offgrad.tensor`, `offgrad.zeros`, `offgrad.from_numpy` and others make tensors. Views made by
    indexing, `view`, `transpose` and others share a tensor's memory and version.
    """

    def __new__(cls, *data: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        """Make a tensor of the default dtype of a sequence, an array, a tensor or sizes."""
        kind = default_dtype() if dtype is None else np.dtype(dtype)
        with CPU:
            source = placed(legacy_tensor(data, kind, "Tensor"), device)
        tensor = object.__new__(cls)
        tensor._set(source._array, source._storage, False)
        return tensor

    def __init__(self, *data: Any, requires_grad: bool = False, **_: Any) -> None:
        """`__new__` makes the tensor, so that subclasses may take other arguments."""
        if requires_grad:
            self.requires_grad_()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("offgrad."):
            overrides.install()

    __torch_function__ = classmethod(overrides.default_torch_function)

    @staticmethod
    def _make_subclass(cls: Any, data: Any, require_grad: bool = False, **_: Any) -> Any:
        """Return a tensor of class `cls` over the memory of `data`."""
        tensor = object.__new__(cls)
        tensor._share(check_tensor(data, "_make_subclass"))
        return tensor.requires_grad_() if require_grad else tensor

    def as_subclass(self, cls: Any) -> Any:
        """Return this tensor as one of a subclass, with the same memory and history."""
        if not (isinstance(cls, type) and issubclass(cls, TensorBase)):
            raise TypeError(f"as_subclass takes a subclass of Tensor, got {cls!r}")
        tensor = self._make_subclass(cls, self)
        if self._grad_fn is not None or self._requires_grad:
            view = View.named("AliasBackward0").apply(self, shape=self._array.shape)
            tensor.__dict__.update(view.__dict__)
        return tensor

    def __iter__(self) -> Iterator["Tensor"]:
        if not self._array.ndim:
            raise TypeError("iteration over a 0-d tensor: it has no dimensions")
        return iter(self.unbind(0))

    def __reversed__(self) -> "Tensor":
        return ops.flip(self, 0) if self._array.ndim else self

    def __repr__(self, **options: Any) -> str:
        return text_of(self, options.get("tensor_contents"))

    __hash__ = object.__hash__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "_array" and self._spec is not None:
                return load_array(self)
            raise no_attribute("Tensor", name)

    # Autograd

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for the tensor."""
        return self._requires_grad or is_stale(self)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise RuntimeError(f"requires_grad must be a bool, got {value!r}")
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> "Tensor":
        """Set whether gradients are computed for this leaf; return it.

        Raises:
            RuntimeError: for integers and bools; if switched off for the result of an operation.
            TypeError: if `requires_grad` is no bool.
        """
        if not isinstance(requires_grad, (bool, np.bool_)):
            raise TypeError(f"requires_grad must be a bool, got {requires_grad!r}")
        if requires_grad:
            check_requires_grad(self)
            if self._storage.inference and not is_inference_mode_enabled():
                raise RuntimeError(
                    "requires_grad=True needs a normal tensor outside inference_mode(), got the "
                    f"inference tensor {describe(self)}; use a clone()"
                )
        elif self._grad_fn is not None:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables, but this "
                f"{describe(self)} was computed by {self._grad_fn.name()}; use detach()"
            )
        self._requires_grad = bool(requires_grad)
        return self

    @property
    def grad(self) -> "Tensor | None":
        """The accumulated gradient of a leaf or a tensor with `retain_grad`, else None.

        Reading it of another tensor warns, since it is None.
        """
        if self._grad is None and self._grad_fn is not None and not self.retains_grad:
            warnings.warn(
                f"The .grad attribute of a Tensor stays None for a result: this {describe(self)} "
                f"is not a leaf, but was computed by {self._grad_fn.name()}; call retain_grad() "
                "before backward for its gradient",
                UserWarning,
                stacklevel=2,
            )
        return self._grad

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if value is not None:
            self._check_gradient(value)
        if value is self:
            raise RuntimeError("can't assign Variable as its own grad; give it a clone()")
        self._grad = value
        if value is not None and self._storage.placer is not None:
            if not value._storage.is_paged:
                value._storage.role = "gradients"
            self._storage.place_alike(value, "gradients")

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    def _check_gradient(self, value: Any) -> None:
        if not isinstance(value, TensorBase):
            raise TypeError(
                f"assigned grad expected to be a Tensor or None but got grad of type "
                f"{type(value).__name__}"
            )
        found, expected = metadata(value), metadata(self)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            problem = f"with dtype '{found.dtype.name}'"
            if found.shape != expected.shape:
                problem = f"of size '{list(found.shape)}'"
            raise RuntimeError(
                f"attempting to assign a gradient {problem} that is not its tensor's: a "
                f"{describe(value)} for a {describe(self)}"
            )

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor is not the result of a recorded operation: gradients end here."""
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that computed the tensor; None for leaves."""
        if is_stale(self):
            refresh(self)
        return self._grad_fn

    @property
    def output_nr(self) -> int:
        """The index of the tensor among the outputs of `grad_fn`."""
        return self._output_nr

    @property
    def _version(self) -> int:
        if self._storage.inference:
            raise RuntimeError("Inference tensors do not track version counter; use a clone()")
        return self._storage.version

    def is_inference(self) -> bool:
        """Return whether the tensor was made in `inference_mode`: autograd refuses such tensors."""
        return self._storage.inference

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def data(self) -> "Tensor":
        """A detached tensor that shares the memory."""
        return self.detach()

    @data.setter
    def data(self, value: "Tensor") -> None:
        if not isinstance(value, TensorBase):
            raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
        if value.is_meta is not self.is_meta:
            raise RuntimeError(
                "incompatible tensor type: .data stays on the device of the tensor, got a "
                f"{describe(value)} on {value.device} for one on {self.device}"
            )
        new, old = metadata(value), metadata(self)
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            if self._requires_grad and not is_differentiable(new.dtype):
                raise RuntimeError(
                    "data set to a tensor that requires gradients must be floating point or "
                    f"complex dtype, got a {describe(value)}"
                )
            self._accumulator = None  # it expects gradients of the old shape and dtype
        before = self._storage
        self._share(value, self._requires_grad)
        if self._is_module_parameter:
            self._storage.role = "parameters"
        before.place_alike(self, before.role)

    def backward(
        self,
        gradient: "Tensor | None" = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: "Tensor | Sequence[Tensor] | None" = None,
    ) -> None:
        """Accumulate the gradients of this tensor into ``.grad`` of leaves: `autograd.backward`."""
        gradients.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def register_hook(self, hook: "Callable[[Tensor], Tensor | None]") -> RemovableHandle:
        """Call ``hook(grad)`` whenever the gradient of this tensor is computed.

        The hook may return a gradient that replaces its argument, which it must not change.

        Raises:
            RuntimeError: if the tensor does not require grad.
        """
        node, output_nr = gradient_edge(self)
        if node is None:
            raise RuntimeError(
                f"cannot register a hook on a {describe(self)}: it must require grad"
            )
        hooks = node.hooks_of_output(output_nr, create=True)
        assert hooks is not None
        return add_hook(hooks, hook)

    def register_post_accumulate_grad_hook(
        self, hook: "Callable[[Tensor], None]"
    ) -> RemovableHandle:
        """Call ``hook(self)`` whenever a gradient has been accumulated into ``.grad`` of this leaf.

        Raises:
            RuntimeError: if the tensor is not a leaf that requires grad.
        """
        if not self._requires_grad or self._grad_fn is not None:
            raise RuntimeError(
                "post accumulate grad hooks cannot be registered on non-leaf tensors, nor on those "
                f"that do not require grad, got a {describe(self)}; use register_hook for results"
            )
        if self._post_accumulate_hooks is None:
            self._post_accumulate_hooks = {}
        return add_hook(self._post_accumulate_hooks, hook)

    def retain_grad(self) -> None:
        """Make backward set ``.grad`` of this tensor although it is not a leaf.

        Raises:
            RuntimeError: if the tensor does not require grad.
        """
        node, _ = gradient_edge(self)
        if node is None:
            raise RuntimeError(
                f"can't retain_grad on Tensor without requires_grad, got a {describe(self)}"
            )
        if not isinstance(node, AccumulateGrad):
            node.retain_grad(self)

    @property
    def retains_grad(self) -> bool:
        """Whether backward sets ``.grad`` although the tensor is not a leaf."""
        return self._grad_fn is not None and self._grad_fn.retains_grad(self)

    # Views

    @property
    def T(self) -> "Tensor":
        """The transposed matrix; for other numbers of dimensions it is deprecated."""
        if self._array.ndim != 2:
            warn_program(
                "The use of `x.T` is deprecated where there are not 2 dimensions: use x.mT for "
                f"batches of matrices, or permute(), got a {describe(self)}"
            )
        return ops.permute(self, tuple(reversed(range(self._array.ndim))))

    @property
    def mT(self) -> "Tensor":
        """The last two dimensions swapped; of a tensor without dimensions itself."""
        if self._array.ndim == 1:
            raise RuntimeError(
                f"mT is only supported on matrices or batches of them, got a {describe(self)}"
            )
        if not self._array.ndim:
            return ops.permute(self, ())
        return ops.transpose(self, -2, -1)

    @property
    def H(self) -> "Tensor":
        """The conjugate transpose of the matrix; a tensor without dimensions conjugated."""
        if self._array.ndim != 2:
            raise RuntimeError(
                f"H is only supported on matrices, got a {describe(self)}; use mH for batches"
            )
        return ops.conj(self.t())

    @property
    def mH(self) -> "Tensor":
        """The last two dimensions swapped, conjugated."""
        if self._array.ndim == 1:
            raise RuntimeError(
                f"mH is only supported on matrices or batches of them, got a {describe(self)}"
            )
        return ops.conj(self.mT)

    @property
    def real(self) -> "Tensor":
        """The real part, a view."""
        return ops.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        ops.real(self).copy_(value)

    @property
    def imag(self) -> "Tensor":
        """The imaginary part, a view."""
        return ops.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        ops.imag(self).copy_(value)

    def where(self, condition: "Tensor", other: Any) -> "Tensor":
        """Return the tensor where `condition` is true, and `other` elsewhere."""
        return ops.where(condition, self, other)

    def view_as(self, other: "Tensor") -> "Tensor":
        """Return a view of the shape of `other`."""
        return ops.view(self, check_tensor(other, "view_as").shape)

    def expand_as(self, other: "Tensor") -> "Tensor":
        """Return a view broadcast to the shape of `other`."""
        return expand_to(self, check_tensor(other, "expand_as").shape, "expand_as")

    def reshape_as(self, other: "Tensor") -> "Tensor":
        """Return the elements in the shape of `other`."""
        return reshape_to(self, check_tensor(other, "reshape_as").shape, "reshape_as")

    # In place

    def detach_(self) -> "Tensor":
        """Remove the tensor from the graph: it becomes a leaf that does not require grad.

        Raises:
            RuntimeError: for views.
        """
        if self._base is not None:
            raise RuntimeError(
                "Can't detach views in-place: they share their base's history. Use detach() instead"
            )
        self._grad_fn, self._output_nr, self._requires_grad = None, 0, False
        return self


Tensor.__module__ = "offgrad"
TensorBase.tensor_class = Tensor
plain_classes.add(Tensor)
