"""Two ways to decide where saved tensors go: a custom policy, and a pair of hooks."""

import zlib
from typing import Any

import numpy as np

import offgrad
from offgrad import nn
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.policies import (
    Keep,
    Placement,
    Policy,
    SaveContext,
    Store,
)


class WideToDisk(Policy):
    """Large tensors of module 2 go to disk, those of other modules to Zarr; the rest stays."""

    def place(self, context: SaveContext) -> Placement:
        """Decide by the context only: the session stores and loads the tensors."""
        if context.is_parameter or context.nbytes < 64 * 1024:
            return Keep()
        return Store("disk" if context.module == "2" else "zarr")


def pack(tensor: offgrad.Tensor) -> tuple[Any, ...]:
    """Return a compressed tensor, with its shape and dtype."""
    array = tensor.numpy()
    return zlib.compress(np.ascontiguousarray(array).data, 1), array.shape, array.dtype


def unpack(packed: tuple[Any, ...]) -> offgrad.Tensor:
    """Return the tensor that `pack` compressed."""
    data, shape, dtype = packed
    return offgrad.from_numpy(np.frombuffer(zlib.decompress(data), dtype).reshape(shape).copy())


def gradient(context: Any) -> np.ndarray[Any, Any]:
    """Return the gradient of the first weight, with forward inside `context`."""
    offgrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.GELU())
    x = offgrad.randn(4096, 64)
    with context:
        loss = model(x).square().mean()
    loss.backward()
    result: np.ndarray[Any, Any] = model[0].weight.grad.numpy()
    return result


if __name__ == "__main__":
    expected = gradient(offgrad.offload("keep"))
    session = offgrad.offload(WideToDisk())
    np.testing.assert_array_equal(gradient(session), expected)
    print(session.ledger)
    np.testing.assert_array_equal(gradient(saved_tensors_hooks(pack, unpack)), expected)
    print("hooks: the same gradient from zlib")
