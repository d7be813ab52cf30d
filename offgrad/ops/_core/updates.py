"""Operations that change some elements of a copy; their in-place forms change the tensor itself."""

from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.mutation import check_mutable, rewrite_history
from offgrad.autograd.op import Array, Op, observers
from offgrad.autograd.out_of_memory import name_forward
from offgrad.autograd.saved_tensor import targets
from offgrad.autograd.tensor_base import wrap
from offgrad.autograd.views import requires_grad
from offgrad.memory import OutOfMemoryError
from offgrad.ops._core.inplace_forms import is_general, is_recorded

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Update(Op):
    """The first input with some elements changed by `change`.

    An in-place form changes the elements of its target alone: its time and memory are those of the
    change, not of the target.
    """

    # The in-place form whose last step is this operation.
    in_place_name: ClassVar[str]
    # Whether `change` takes arrays of any layout.
    changes_any_layout: ClassVar[bool] = False
    # Whether `forward` saves the first input or the output, so that a recorded form needs a copy.
    saves_changed: ClassVar[bool] = False

    def forward(self, *arrays: Any, **parameters: Any) -> Array:
        """Return a changed copy of the first array."""
        out = memory.copy(arrays[0])
        self.setup_context(*arrays, **parameters)
        self.change(out, *arrays[1:], **parameters)
        return out

    def setup_context(self, *arrays: Any, **parameters: Any) -> None:
        """Save what backward needs of the inputs: not the first array, which may change."""
        raise NotImplementedError

    def change(self, *arrays: Any, **parameters: Any) -> None:
        """Change the first array, C-contiguous unless `changes_any_layout`; raise before that."""
        raise NotImplementedError

    @classmethod
    def _apply(cls, inputs: "tuple[Tensor | None, ...]", parameters: dict[str, Any]) -> list[Any]:
        thread = get_ident()
        storage, target, name = targets.get(thread, (None, None, ""))
        if storage is None or target is not inputs[0] or name != cls.in_place_name:
            return super()._apply(inputs, parameters)
        assert target is not None
        targets[thread] = storage, target, ""  # what hooks do to the target is no part of the form
        if not cls._may_change(target, inputs):
            return super()._apply(inputs, parameters)
        recorded = grad_mode.state.grad_enabled and (
            is_recorded(target, None) or any(map(requires_grad, inputs))
        )
        arrays = [None if each is None else each._array for each in inputs]
        node = object.__new__(cls)
        previous = ignore_float_errors()
        try:
            if recorded:  # before the change, because packing what is saved may fail
                check_mutable(target, name, recorded)
                node._record_change(target, inputs, arrays, parameters)
            target._storage.write(name)  # which may move the memory
            try:
                node.change(target._array, *arrays[1:], **parameters)
            except Exception as error:
                target._storage.version -= 1  # nothing has changed
                if isinstance(error, OutOfMemoryError):
                    name_forward(error, node, inputs)
                raise
        finally:
            restore_float_errors(previous)
        if recorded:
            rewrite_history(target, (node, 0))
        return [target]

    @classmethod
    def _may_change(cls, target: "Tensor", inputs: "tuple[Tensor | None, ...]") -> bool:
        """Return whether this operation may write its result over `target` at once."""
        if observers or is_general(target):
            return False
        array, needs_copy = target._array, cls.saves_changed or not grad_mode.state.grad_enabled
        if not (array.flags.c_contiguous or cls.changes_any_layout):
            return False
        for each in inputs[1:]:
            if (
                each is None
                or each._storage.is_paged
                or type(each._array) is not np.ndarray
                or np.may_share_memory(array, each._array)
                or (needs_copy and is_recorded(target, each))
            ):
                return False
        return True

    def _record_change(
        self,
        target: "Tensor",
        inputs: "tuple[Tensor | None, ...]",
        arrays: list[Array | None],
        parameters: dict[str, Any],
    ) -> None:
        """Make this the node of a change of `target`, and save for backward."""
        self.needs_input_grad = tuple(map(requires_grad, inputs))
        self.setup_context(*arrays, **parameters)
        self.is_recomputable = False  # type: ignore[misc]
        output = wrap(target._array, target._storage)
        self._record(inputs, arrays, target._array, [output], parameters)
