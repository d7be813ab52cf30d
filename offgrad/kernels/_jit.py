"""Numba, lazily: `@jit` compiles a loop at its first call, `@specialised` makes scalar helpers.

Importing this module does not import numba. Compiled loops are cached on disk next to the source
(or in the user's cache folder where that is read-only), so a second process loads them.

Loops are serial and release the GIL; Python threads run them (see `_parallel`). The reasons:

- Numba's `workqueue` threading layer aborts the process when two threads enter parallel code at
  once, and GNU OpenMP (`omp`) does not survive a fork; a small pool of Python threads allows both.
- Work split into ranges that depend on the problem's size alone gives the same bits on any
  number of threads.

`FAST` lets LLVM vectorise sums and fuse multiply-adds but, without `nnan` and `ninf`, keeps NaN and
infinity meaningful. Helpers get `contract` alone: an argument reduction in two steps, as in
`_fastmath.exp`, is lost if terms may be regrouped.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from offgrad_storage.interrupts import MaskedLock, interruptible

from offgrad.kernels import _range_driver
from offgrad.memory.forks import Lock, forkables

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

FAST = frozenset({"reassoc", "contract", "nsz", "arcp", "afn"})
BACKENDS = ("numba", "numpy")

_lock = MaskedLock(reentrant=True)
_backend: str | None = None
_helpers: dict[Callable[..., Any], Callable[..., Any]] = {}
_registered = 0


class _AcrossForks:
    """A lock that a fork takes, so that no import and no compilation is half done in the child."""

    def __init__(self, lock: Callable[[], Lock]) -> None:
        self._lock = lock

    @property
    def lock(self) -> Lock:
        """The lock."""
        return self._lock()

    def forget_other_threads(self) -> None:
        """Nothing: the thread that forked holds the lock."""


def _numba_lock() -> Lock:
    """Return the lock that Numba holds while it compiles."""
    module = sys.modules.get("numba.core.compiler_lock")
    lock: Lock = _lock if module is None else module.global_compiler_lock._lock
    return lock


_across_forks = (_AcrossForks(_numba_lock), _AcrossForks(lambda: _lock))
for _each in _across_forks:
    forkables.add(_each)


def backend() -> str:
    """The implementation in use, "numba" or "numpy".

    Set at the first kernel call from the environment variable OFFGRAD_KERNELS (default
    "numba"); without an importable numba it is "numpy", with one RuntimeWarning.
    """
    if _backend is None:
        set_backend(os.environ.get("OFFGRAD_KERNELS", "numba"))
    assert _backend is not None
    return _backend


def set_backend(name: str) -> None:
    """Use the "numba" loops or the "numpy" references from now on, in the whole process.

    Raises ValueError for another name.
    """
    global _backend
    if name not in BACKENDS:
        raise ValueError(
            f"kernels run on {' or '.join(BACKENDS)}, got {name!r}: set OFFGRAD_KERNELS accordingly"
        )
    with _lock, interruptible:
        if name == "numba" and not _numba_imports():
            name = "numpy"
        _backend = name


def _numba_imports() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"numba cannot be imported ({error}): offgrad's kernels fall back to NumPy, several "
            "times slower. Install numba, or set OFFGRAD_KERNELS=numpy to silence this",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    return True


def compiles() -> bool:
    """Return whether loops are compiled: not if NUMBA_DISABLE_JIT asks Numba for Python's."""
    if backend() != "numba":
        return False
    import numba

    return not numba.config.DISABLE_JIT


_COMPILED_DTYPES = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def uses_numba(*arrays: np.ndarray[Any, Any]) -> bool:
    """Whether these arrays go to the compiled loop: all float32 or float64, backend numba."""
    if (_backend or backend()) != "numba":
        return False
    for array in arrays:  # noqa: SIM110 (half the time of all())
        if array.dtype not in _COMPILED_DTYPES:
            return False
    return True


class Kernel(Generic[P, R]):
    """A loop that Numba compiles at its first call, once per combination of argument types.

    Args:
        function: the loop in Python.
        calls: loops that it calls by these names of its module.

    Attributes:
        function: the loop in Python.
        has_ranges: whether threads may share a call; see `_range_driver`.
        first_worker: what a call of one range passes after `stop`.
    """

    def __init__(
        self, function: Callable[P, R], calls: Mapping[str, Kernel[..., Any]] | None = None
    ) -> None:
        self.function, self._calls = function, calls or {}
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        self.has_ranges = _range_driver.has_ranges(names)
        self.first_worker = (0,) if names[-1:] == ("worker",) else ()
        self._compiled: Callable[P, R] | None = None
        functools.update_wrapper(self, function)
        loops.append(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the loop."""
        compiled = self._compiled
        if compiled is None:
            with _collector_paused():
                return self._compile()(*args, **kwargs)
        return compiled(*args, **kwargs)

    def counts(self) -> tuple[int, int]:
        """Return how many types of arguments this process compiled, and loaded from the cache."""
        if self._compiled is None:
            return 0, 0
        statistics = self._compiled.stats  # type: ignore[attr-defined]
        return sum(statistics.cache_misses.values()), sum(statistics.cache_hits.values())

    def folders(self) -> list[str | None]:
        """Return the folder of the cache if the loop has run, None for a loop that has none."""
        return [] if self._compiled is None else [self._compiled.stats.cache_path]  # type: ignore[attr-defined]

    def cache(self) -> tuple[str | None, bool]:
        """Return the folder of the cache, None without one, and whether the loop is in it.

        Numba knows whether what is there is of this version of the source.
        """
        cache: Any = self._compile()._cache  # type: ignore[attr-defined]
        if cache.cache_path is None:
            return None, False
        return cache.cache_path, bool(cache._cache_file._load_index())

    def _compile(self) -> Callable[P, R]:
        with _lock, interruptible:
            if self._compiled is None:
                _register_helpers()
                function = _named_after_helpers(self.function, self._calls)
                self._compiled = _cached(_njit(self.has_ranges))(function)
            return self._compiled


loops: list[Kernel[..., Any]] = []
"""All loops of the modules that are imported."""


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector: compiling makes many objects, and collecting them takes a
    tenth of its time.
    """
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()


def jit(function: Callable[P, R]) -> Kernel[P, R]:
    """Decorate a loop over arrays: compiled without the GIL, serial, with `FAST` arithmetic."""
    return Kernel(function)


def loop_of(template: Callable[P, R], value: Callable[..., Any]) -> Kernel[P, R]:
    """Return a template's loop, which calls a function by the name `value`.

    Args:
        template: a loop whose module has that name.
        value: an `@inlined` or `@specialised` helper, or one of Python's operators.
    """
    assert isinstance(template, types.FunctionType)
    name = f"{template.__name__}_{value.__name__.strip('_')}"
    names = {**template.__globals__, "value": value}
    loop = types.FunctionType(template.__code__, names, name, template.__defaults__)
    loop.__module__, loop.__qualname__ = template.__module__, name
    return Kernel(loop)


def specialised(float32: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a helper that loops may call: `float32` serves float32, its own body all else.

    The type of the first argument (or of its elements) decides at compile time. The decorated
    function stays an ordinary Python function.
    """

    def register(function: F) -> F:
        _helpers[function] = float32
        return function

    return register


def inlined(function: F) -> F:
    """Decorate a helper that loops may call, with one body for all types."""
    return specialised(float32=function)(function)


def _njit(has_ranges: bool) -> Callable[..., Any]:
    """Return Numba's decorator of loops; with `has_ranges`, threads may share calls."""
    from offgrad.kernels import _compilers

    return _decorator(_compilers.DRIVEN if has_ranges else _compilers.LOOP)


def _decorator(compiler: Any) -> Callable[..., Any]:
    """Return Numba's decorator of loops that a compiler of `_compilers` compiles."""
    import numba

    return functools.partial(
        numba.njit,
        nogil=True,
        fastmath=set(FAST),
        error_model="numpy",
        no_cfunc_wrapper=True,  # no C code calls loops: less to compile
        pipeline_class=compiler,
    )


def _cached(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Return Numba's decorator with a cache on disk, if there is a folder for it."""

    def decorate(function: Callable[P, R]) -> Any:
        try:
            return compile_(cache=True)(function)
        except RuntimeError:  # neither the source's folder nor the user's cache can be written to
            return compile_(cache=False)(function)

    return decorate


def compile_c_function(function: Callable[..., int], parameters: int) -> int:
    """Compile a C function of 64-bit integers, which returns one; return its address."""
    import numba

    from offgrad.kernels import _compilers

    with _lock, interruptible:
        _register_helpers()
    signature = numba.int64(*[numba.int64] * parameters)
    options = {"error_model": "numpy", "pipeline_class": _compilers.LOOP}
    compile_ = functools.partial(numba.cfunc, signature, nopython=True, **options)
    with _collector_paused():
        compiled = _cached(compile_)(_named_after_helpers(function))
    _c_functions.append(compiled)
    address: int = compiled.address
    return address


_c_functions: list[Any] = []


def _register_helpers() -> None:
    """Register each new helper with Numba's typing."""
    global _registered
    if _registered == len(_helpers):
        return
    import numba

    from offgrad.kernels import _compilers

    for function, float32 in list(_helpers.items())[_registered:]:

        def choose(
            *args: Any,
            float32: Callable[..., Any] = float32,
            float64: Callable[..., Any] = function,
        ) -> Callable[..., Any]:
            return float32 if getattr(args[0], "dtype", args[0]) == numba.float32 else float64

        _compilers.overload(function, choose)
    _registered = len(_helpers)


def _named_after_helpers(
    function: Callable[P, R], calls: Mapping[str, Kernel[..., Any]] | None = None
) -> Callable[P, R]:
    """A copy of `function` whose name carries a digest of the code of the helpers it calls.

    With `calls`, it calls these loops by their names, and its own name has theirs.

    Numba's disk cache checks only the loop's own file. With the digest in the name, a changed
    helper in another file gives a new cache entry instead of a stale one.
    """
    assert isinstance(function, types.FunctionType)
    called: dict[str, Any] = {name: each.function for name, each in (calls or {}).items()}
    names = function.__globals__
    if called:
        from offgrad.kernels import _compilers

        compile_ = _decorator(_compilers.CALLED)
        names = {**names, **{name: compile_(each) for name, each in called.items()}}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__module__ = function.__module__
    parts = [each.__qualname__ for each in (function, *called.values())]
    copy.__qualname__ = "_".join([*parts, _helpers_digest(function, *called.values())])
    return copy


def _helpers_digest(function: types.FunctionType, *loops: types.FunctionType) -> str:
    """Return a digest of `loops`, and of the helpers that these and a loop call, also in others."""
    import hashlib  # OpenSSL takes milliseconds

    digest = hashlib.sha256()
    called: dict[Callable[..., Any], None] = {}
    waiting: list[Callable[..., Any]] = [function, *loops]
    while waiting:
        caller = waiting.pop()
        for helper in map(caller.__globals__.get, caller.__code__.co_names):
            if not isinstance(helper, types.FunctionType) or helper in called:
                continue
            float32 = _helpers.get(helper)
            if float32 is not None:
                called[helper] = None
                waiting += (helper, float32)
    digest.update(repr(_constants(function)).encode())
    bodies: list[Any] = [*loops]
    for each in called:
        bodies += (each, _helpers[each])
    for helper in bodies:
        digest.update(repr((_code(helper.__code__), _constants(helper))).encode())
    digest.update(_range_driver.VERSION)
    return digest.hexdigest()[:8]


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """Return what code does, with that of the functions in it, in a form that stays the same."""
    constants = [
        _code(each) if isinstance(each, types.CodeType) else each for each in code.co_consts
    ]
    return code.co_code.hex(), code.co_names, constants


def _constants(function: Callable[..., Any]) -> list[tuple[str, str]]:
    """Return the numbers outside of a function that it uses."""
    return [
        (name, repr(value))
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), (int, float, np.generic, tuple))
    ]
