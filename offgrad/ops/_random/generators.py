"""Counter-based random generators, whose state is a seed and an offset."""

import operator
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from offgrad_storage.interrupts import MaskedLock

from offgrad.autograd.ownership import is_only_holder
from offgrad.autograd.tensor_base import TensorBase, wrap
from offgrad.memory.meta import is_shape_only
from offgrad.ops._core.device import CPU, Device, check_device
from offgrad.ops._random import replay

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "Generator",
    "default_generator",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]

_FIRST_SEED = 67280421310721  # PyTorch's
_WORDS = 2**64 - 1
_EMPTY_BUFFER = np.zeros(4, np.uint64)  # the words of a step that are left


class Generator:
    """A random generator; its state is a seed and the count of numbers drawn.

    Thread-safe; threads that share a generator draw in order of arrival. The only device is the
    CPU.
    """

    def __init__(self, device: Any = "cpu") -> None:
        check_device(device)
        self._lock = MaskedLock()
        self._seed, self._offset = _FIRST_SEED, 0

    @property
    def device(self) -> Device:
        """The device: always the CPU."""
        return CPU

    def manual_seed(self, seed: Any) -> "Generator":
        """Restart from `seed`, an int64 or a uint64; return the generator.

        Raises:
            ValueError: for other integers.
        """
        number = int(seed)
        if not -(2**63) <= number <= _WORDS:
            raise ValueError(f"manual_seed: the seed must be an int64 or a uint64, got {number}")
        self._restart(number & _WORDS, 0)
        return self

    def seed(self) -> int:
        """Restart from a seed that the operating system chooses; return it."""
        seed = int.from_bytes(os.urandom(8), "little")
        self._restart(seed, 0)
        return seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._seed

    def get_offset(self) -> int:
        """Return how many numbers have been drawn since the generator was seeded."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Go to the number that follows `offset` others."""
        self._restart(self._seed, int(offset))

    def get_state(self) -> "Tensor":
        """Return the state, bytes for `set_state`."""
        with self._lock:
            words = np.array([self._seed, self._offset], np.uint64)
        return wrap(words.view(np.uint8))

    def set_state(self, new_state: "Tensor") -> None:
        """Set a state that `get_state` returned.

        Raises:
            TypeError: if it is not a tensor of bytes.
            RuntimeError: if it is not the state of such a generator.
        """
        if not isinstance(new_state, TensorBase) or new_state._array.dtype != np.uint8:
            raise TypeError(
                "the state of a generator is a uint8 tensor, such as get_state() returns"
            )
        if new_state._array.shape != (16,):
            raise RuntimeError(
                "RNG state is wrong size: a generator's state has 16 bytes, got shape "
                f"{list(new_state._array.shape)}"
            )
        seed, offset = np.ascontiguousarray(new_state._array).view(np.uint64).tolist()
        self._restart(seed, offset)

    def clone_state(self) -> "Generator":
        """Return another generator in the same state."""
        other = Generator()
        other.set_state(self.get_state())
        return other

    def _restart(self, seed: int, offset: int) -> None:
        if not replay.is_replaying():
            with self._lock:
                self._seed, self._offset = seed, offset

    def advance(self, count: int) -> tuple[int, int]:
        """Take `count` numbers; return the seed and the offset of the first.

        A checkpoint's recomputation gets the numbers of its forward run.
        """
        count = operator.index(count)  # a tensor would make an array of the state
        if is_shape_only():
            return self._seed, self._offset
        draw = replay.take(count, lambda: self._draw(count))
        return draw.seed, draw.offset

    def _draw(self, count: int) -> replay.Draw:
        with self._lock:
            seed, offset = self._seed, self._offset
            self._offset = offset + count
        return replay.Draw(seed, offset, count)

    def stream(self, count: int) -> "np.random.Generator":
        """Take `count` numbers; return a NumPy generator that yields them."""
        return _stream_at(*self.advance(count))

    def __getstate__(self) -> Any:
        return self._seed, self._offset

    def __setstate__(self, state: Any) -> None:
        self._lock = MaskedLock()
        self._seed, self._offset = state


class _Spare(threading.local):
    """This thread's last stream, in a list: it is used again once nobody else holds it."""

    def __init__(self) -> None:
        self.streams: list[np.random.Generator] = []


_spare = _Spare()


def _stream_at(seed: int, offset: int) -> "np.random.Generator":
    """Return NumPy's generator of the words from `offset` on.

    A step of Philox's counter gives four 64-bit words: room for rejections in each number. A new
    generator reads the operating system's random numbers first: 36 us.
    """
    streams = _spare.streams
    if not (streams and is_only_holder(streams)):
        streams[:] = [np.random.Generator(np.random.Philox(key=seed, counter=offset))]
        return streams[0]
    stream = streams[0]
    counter = [offset & _WORDS, offset >> 64, 0, 0]
    stream.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {
            "counter": np.array(counter, np.uint64),
            "key": np.array([seed, 0], np.uint64),
        },
        "buffer": _EMPTY_BUFFER,
        "buffer_pos": len(_EMPTY_BUFFER),
        "has_uint32": 0,
        "uinteger": 0,
    }
    return stream


default_generator = Generator()


def manual_seed(seed: Any) -> Generator:
    """Seed the default generator and return it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator by the operating system; return the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """Return the seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> "Tensor":
    """Return the state of the default generator, bytes."""
    return default_generator.get_state()


def set_rng_state(new_state: "Tensor") -> None:
    """Set the state of the default generator."""
    default_generator.set_state(new_state)
