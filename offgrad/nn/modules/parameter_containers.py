"""Lists and dicts of parameters."""

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, KeysView, Mapping
from typing import Any, NoReturn, Self, overload

from offgrad.autograd.tensor_base import TensorBase
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter


def as_position(index: Any, length: int) -> int:
    """Return an index from 0 to `length` - 1."""
    index = operator.index(index)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range, of {length} entries")
    return int(index % length)


def as_iterable(values: Any, caller: str, what: str = "an iterable") -> Any:
    """Return `values` after a check that they are iterable, and no tensor."""
    if isinstance(values, TensorBase) or not isinstance(values, Iterable):
        raise TypeError(f"{caller} should be called with {what}, but got {type(values).__name__}")
    return values


def as_pairs(values: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of a mapping, or of a sequence of pairs."""
    what = "an iterable of key/value pairs"
    if isinstance(values, Mapping) or (isinstance(values, Module) and hasattr(values, "items")):
        yield from list(values.items())
        return
    for number, pair in enumerate(as_iterable(values, f"{kind}.update", what)):
        if not isinstance(pair, Iterable):
            raise TypeError(
                f"{kind} update sequence element #{number} should be Iterable, got "
                f"{type(pair).__name__}"
            )
        key_and_value = tuple(pair)
        if len(key_and_value) != 2:
            raise ValueError(
                f"{kind} update sequence element #{number} has length {len(key_and_value)}; 2 is "
                "required"
            )
        yield key_and_value


def _as_parameter(value: Any) -> Any:
    is_plain = isinstance(value, TensorBase) and not isinstance(value, Parameter)
    return Parameter(value) if is_plain else value


def _entry_repr(key: object, value: Any, names_type: bool = False) -> str:
    """Return the line of a parameter, or of another object, in a container's text.

    Args:
        key: its place.
        value: the parameter or object.
        names_type: name the dtype by the old type, such as ``torch.FloatTensor``.
    """
    if not isinstance(value, TensorBase):
        return f"  ({key}): Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else type(value).__name__
    size = "x".join(map(str, value._array.shape))
    dtype = value.type() if names_type else value.dtype  # type: ignore[attr-defined]
    return f"  ({key}): {kind} containing: [{dtype} of size {size}]"


class ParameterList(Module):
    """A list of parameters, for use in a custom `forward`.

    Tensors become parameters; other objects stay as they are.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    @overload
    def __getitem__(self, idx: int) -> Any: ...
    @overload
    def __getitem__(self, idx: slice) -> "ParameterList": ...
    def __getitem__(self, idx: int | slice) -> Any:
        """Return a parameter, or for a slice a list of the same class."""
        if isinstance(idx, slice):
            return type(self)(list(self)[idx])
        return getattr(self, str(as_position(idx, len(self))))

    def __setitem__(self, idx: int, param: Any) -> None:
        setattr(self, str(as_position(idx, len(self))), _as_parameter(param))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, str(position)) for position in range(len(self))])

    def __iadd__(self, parameters: Iterable[Any]) -> Self:
        return self.extend(parameters)

    def append(self, value: Any) -> Self:
        """Add a value at the end; return the list."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add values at the end; return the list."""
        for value in list(as_iterable(values, "ParameterList.extend")):
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(_entry_repr(position, each) for position, each in enumerate(self))

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """A dict of parameters, for use in a custom `forward`.

    Tensors become parameters; other objects stay as they are. Keys are strings.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def _key_to_attr(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"keys of a ParameterDict are strings, got {key!r}")
        return key

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._key_to_attr(key))

    def __setitem__(self, key: str, value: Any) -> None:
        name = self._key_to_attr(key)
        self._keys[key] = None
        setattr(self, name, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        name = self._key_to_attr(key)
        del self._keys[key]
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def copy(self) -> "ParameterDict":
        """Return a new dict of the same parameters."""
        return ParameterDict(dict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; if there is none, set it to `default` before."""
        if key not in self:
            self[key] = default
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if there is none."""
        return self[key] if key in self._keys else default

    def clear(self) -> None:
        """Remove all values."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Remove a value and return it."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key and value and return them."""
        if not self._keys:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> "ParameterDict":
        """Return a dict with `default` for each of `keys`."""
        return ParameterDict(dict.fromkeys(keys, default))

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return keys and values."""
        return ((key, self[key]) for key in self._keys)

    def values(self) -> Iterable[Any]:
        """Return the values."""
        return (self[key] for key in self._keys)

    def update(self, parameters: Any) -> None:
        """Add the values of a mapping, or of pairs of keys and values.

        A mapping that is neither an OrderedDict nor a ParameterDict is taken in the order of its
        sorted keys, as in PyTorch.
        """
        pairs: Iterable[tuple[str, Any]] = as_pairs(parameters, "ParameterDict")
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            pairs = sorted(pairs)
        for key, value in pairs:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(_entry_repr(key, each, True) for key, each in self.items())

    def __call__(self, input: Any) -> NoReturn:
        raise RuntimeError("ParameterDict should not be called.")

    def __or__(self, other: "ParameterDict") -> "ParameterDict":
        copy = self.copy()
        copy.update(other)
        return copy

    def __ror__(self, other: Any) -> Any:
        copy = other.copy()
        copy.update(dict(self.items()))
        return copy

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self
