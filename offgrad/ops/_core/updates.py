"""Operations that change some elements of a copy; their in-place forms change the tensor itself."""

from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import memory
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.op import Array, Op, observers
from offgrad.autograd.saved_tensor import targets
from offgrad.memory import OutOfMemoryError
from offgrad.ops._core.inplace_forms import is_general, is_recorded

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Update(Op):
    """The first input with some elements changed by `change`.

    An in-place form that is not recorded changes the elements of its target alone: its time and
    memory are those of the change, not of the target.
    """

    # The in-place form whose last step is this operation.
    in_place_name: ClassVar[str]

    def forward(self, *arrays: Any, **parameters: Any) -> Array:
        """Return a changed copy of the first array."""
        out = memory.copy(arrays[0])
        self.change(out, *arrays[1:], **parameters)
        return out

    def change(self, *arrays: Any, **parameters: Any) -> None:
        """Change the first array, which is C-contiguous; allocate memory before that."""
        raise NotImplementedError

    @classmethod
    def _apply(cls, inputs: "tuple[Tensor | None, ...]", parameters: dict[str, Any]) -> list[Any]:
        _, target, name = targets.get(get_ident(), (None, None, ""))
        if target is None or not cls._may_change(target, name, inputs):
            return super()._apply(inputs, parameters)
        node = object.__new__(cls)
        storage = target._storage
        storage.write(name)
        previous = ignore_float_errors()
        try:
            node.change(*[each._array for each in inputs if each is not None], **parameters)
        except OutOfMemoryError:
            storage.version -= 1  # nothing has changed
            raise
        finally:
            restore_float_errors(previous)
        return [target]

    @classmethod
    def _may_change(cls, target: "Tensor", name: str, inputs: "tuple[Tensor | None, ...]") -> bool:
        """Return whether this operation may write its result over `target` at once."""
        if inputs[0] is not target or name != cls.in_place_name or observers or is_general(target):
            return False
        array = target._array
        return array.flags.c_contiguous and not any(
            each is None
            or each._storage.is_paged
            or type(each._array) is not np.ndarray
            or is_recorded(target, each)
            or np.may_share_memory(array, each._array)
            for each in inputs[1:]
        )
