"""Unpicklers: one that makes tensors and plain data only, and one for files that are trusted.

The first is Python's own, with all instructions removed that a state dict does not need, and with
checks in those that call something. A file can only name what is on a list.
"""

import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

from offgrad._checkpoint.names import offgrad_module, plain_globals
from offgrad._checkpoint.rebuild import REBUILD
from offgrad._refused import MARK
from offgrad._tensor.tensor import Tensor

_safe: dict[str, Any] = {}
_BLOCKED = ("sys", "os", "posix", "nt")
"""Modules of functions that act on the system."""

_OF_CORRUPT_PICKLES = (
    AssertionError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    struct.error,
)

Persistent = Callable[[Any], Any]

_INSTRUCTIONS = """
MARK STOP POP POP_MARK DUP FLOAT INT BININT BININT1 LONG BININT2 NONE PERSID BINPERSID
REDUCE BINSTRING SHORT_BINSTRING UNICODE BINUNICODE APPEND BUILD GLOBAL DICT EMPTY_DICT
APPENDS GET BINGET LONG_BINGET LIST EMPTY_LIST PUT BINPUT LONG_BINPUT SETITEM TUPLE
EMPTY_TUPLE SETITEMS BINFLOAT PROTO NEWOBJ TUPLE1 TUPLE2 TUPLE3 NEWTRUE NEWFALSE LONG1
LONG4 BINBYTES SHORT_BINBYTES SHORT_BINUNICODE BINUNICODE8 BINBYTES8 EMPTY_SET ADDITEMS
STACK_GLOBAL MEMOIZE FRAME
"""

# The unpickler in Python, whose methods can be replaced.
_PythonUnpickler: Any = pickle._Unpickler


def safe_globals() -> dict[str, Any]:
    """Return the classes and functions that the program allows in files, by full name."""
    return _safe


def known_globals() -> dict[str, Any]:
    """Return all that weights-only files may refer to, by full name."""
    return {**plain_globals(), **REBUILD, **_safe}


def full_name(value: Any) -> str:
    """Return the name by which a pickle refers to a class or function."""
    return f"{value.__module__}.{value.__qualname__}"


class WeightsOnlyUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Makes tensors, containers, numbers, text, and objects of classes that the program allows."""

    dispatch: dict[int, Any] = {
        opcode[0]: _PythonUnpickler.dispatch[opcode[0]]
        for opcode in (getattr(pickle, name) for name in _INSTRUCTIONS.split())
    }

    def __init__(self, file: BinaryIO, persistent: Persistent, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._persistent = persistent
        self._callables: dict[int, Any] = {}
        self._globals = {**plain_globals(), **REBUILD}

    def load(self) -> Any:
        """Return the object.

        Raises:
            pickle.UnpicklingError: the pickle is not one of plain data, or is corrupt.
        """
        try:
            return super().load()
        except _OF_CORRUPT_PICKLES as error:
            if isinstance(error, KeyError) and isinstance(error.args[0], int):
                name = chr(error.args[0])
                raise self._error(f"plain data does not need its instruction {name!r}") from None
            raise pickle.UnpicklingError(
                "Weights only load failed: the pickle in the file is corrupt, or holds other "
                f"objects than tensors and plain data ({type(error).__name__}: {error})"
            ) from error

    def find_class(self, module: str, name: str) -> Any:
        """Return what a file may refer to."""
        if self.proto < 3 and module in ("__builtin__", "copy_reg"):
            module = {"__builtin__": "builtins", "copy_reg": "copyreg"}[module]
        full = f"{module}.{name}"
        if full in _safe:
            found = _safe[full]
        elif full in self._globals:
            found = self._globals[full]
        elif module in _BLOCKED:
            raise self._error(f"it refers to {full}, whose module {module} is blocked")
        else:
            raise self._error(
                f"it refers to {full}, which was not an allowed global by default: only tensors "
                "and plain data are. If you trust that class or function, allow it with "
                f"add_safe_globals([{name}]), or for a block with safe_globals([{name}]), of "
                "offgrad.serialization"
            )
        if callable(found) and (not isinstance(found, type) or not issubclass(found, Tensor)):
            self._callables[id(found)] = found
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Return a storage."""
        return self._persistent(pid)

    def _error(self, why: str) -> pickle.UnpicklingError:
        return pickle.UnpicklingError(
            f"Weights only load failed: the file was not loaded, since {why}. Only if you trust "
            "its source, load it with weights_only=False: that can run any code"
        )

    def _check_call(self, function: Any) -> None:
        if self._callables.get(id(function)) is not function and function not in _safe.values():
            raise self._error(f"it calls {function!r}")

    def load_reduce(self) -> None:
        """Call a function of the list."""
        self._check_call(self.stack[-2])
        super().load_reduce()

    def load_newobj(self) -> None:
        """Make an object of a class that the program allows."""
        kind = self.stack[-2]
        if kind is not OrderedDict and kind not in _safe.values():
            raise self._error(f"it makes an object of {kind!r}")
        super().load_newobj()

    def load_build(self) -> None:
        """Set the attributes of an ordered dict, or of an object that the program allows."""
        target = self.stack[-2]
        kind: Any = type(target)
        if kind is OrderedDict:
            state = self.stack.pop()
            if not isinstance(state, dict):
                raise self._error("it sets the state of an OrderedDict to something else")
            vars(target).update(state)
        elif kind in _safe.values():
            super().load_build()
        else:
            raise self._error(f"it sets attributes of a {kind.__name__}")

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build


class TrustingUnpickler(pickle.Unpickler):
    """Makes any object; PyTorch's names stand for offgrad's."""

    def __init__(self, file: BinaryIO, persistent: Persistent, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._persistent = persistent
        self._globals = {**plain_globals(), **REBUILD}

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function: of offgrad, if the file names PyTorch's."""
        known = self._globals.get(f"{module}.{name}")
        if known is not None and module.partition(".")[0] in ("torch", "_codecs"):
            return known
        if module.partition(".")[0] != "torch":
            return super().find_class(module, name)
        # Where PyTorch has it, or among the public names of the package above: nn or optim.
        parts = module.split(".")[1:]
        for path in (parts, parts[:1]):
            found: Any = offgrad_module()
            for part in [*path, *name.split(".")]:
                found = getattr(found, part, None)
            if found is not None and not getattr(found, MARK, False):
                return found
        raise pickle.UnpicklingError(
            f"the file holds a {module}.{name} of PyTorch, which offgrad does not have; save a "
            "state_dict() there instead of whole objects"
        )

    def persistent_load(self, pid: Any) -> Any:
        """Return a storage."""
        return self._persistent(pid)
