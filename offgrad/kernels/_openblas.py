"""NumPy's OpenBLAS: which of its kernels run, and its products for compiled loops.

Functions are looked up through the handle of NumPy's own extension module, whose symbols include
those of the libraries it is linked to, so the library found is the one that NumPy multiplies with.
With another BLAS, and where a platform looks symbols up differently, `library` returns None.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from threading import get_ident
from typing import Any

import numpy as np

CORE_VARIABLE = "OPENBLAS_CORETYPE"
TIMEOUT_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"

# The names of functions in NumPy's wheels, in builds with 64-bit integers, and in others.
_NAMINGS = (("scipy_", "64_"), ("", "64_"), ("", ""))

_AVX2, _AVX512 = 3, 4
_CORES = {
    "prescott": 0,
    "core2": 0,
    "barcelona": 0,
    "nehalem": 1,
    "sandybridge": 2,
    "bulldozer": 2,
    "piledriver": 2,
    "steamroller": 2,
    "excavator": 2,
    "haswell": _AVX2,
    "zen": _AVX2,
    "skylakex": _AVX512,
    "cooperlake": _AVX512,
    "sapphirerapids": _AVX512,
}
"""The vector instructions that the kernels of each name use, as a rank."""

# NumPy's names: from 2.4 on levels of x86-64, before that sets of features. X86_V4 and AVX512_SKX
# are AVX512F, CD, BW, DQ and VL together, which the kernels for SkylakeX use.
_FITTING = (
    ("SkylakeX", ({"X86_V4"}, {"AVX512_SKX"})),
    ("Haswell", ({"X86_V3"}, {"AVX2", "FMA3"})),
)


class OpenBLAS:
    """The functions of the library.

    Attributes:
        integer: the type of its integers.
    """

    def __init__(self, handle: ctypes.CDLL, prefix: str, suffix: str) -> None:
        self._handle, self._prefix, self._suffix = handle, prefix, suffix
        self.integer = np.int64 if suffix else np.int32

    def core(self) -> str:
        """Return OpenBLAS's name of the kernels that run, such as "Haswell"."""
        return self._text("openblas_get_corename")

    def config(self) -> str:
        """Return the version and the options of the build."""
        return self._text("openblas_get_config")

    @property
    def threading_layer(self) -> str:
        """What its threads are made of, by threadpoolctl's names."""
        return {0: "disabled", 2: "openmp"}.get(self._named("openblas_get_parallel")(), "pthreads")

    def get_num_threads(self) -> int:
        """Return the number of threads that a product may use."""
        return int(self._named("openblas_get_num_threads")())

    def set_num_threads(self, count: int) -> None:
        """Let products use `count` threads."""
        self._named("openblas_set_num_threads")(count)

    def gemm(self, dtype: np.dtype[Any]) -> int:
        """Return the address of the CBLAS product of float32 or float64 matrices."""
        name = "cblas_sgemm" if dtype == np.float32 else "cblas_dgemm"
        return ctypes.cast(self._named(name), ctypes.c_void_p).value or 0

    def thread_timeout(self) -> int | None:
        """Return the setting that OPENBLAS_THREAD_TIMEOUT had when it was read; 0 if not set."""
        read = getattr(self._handle, "openblas_thread_timeout", None)
        return None if read is None else int(read())

    def choose_core(self) -> None:
        """Choose the kernels anew, as the environment says now; no product may run meanwhile."""
        self._handle.gotoblas_dynamic_quit()
        self._handle.gotoblas_dynamic_init()

    def restart_threads(self) -> None:
        """Read the environment again and end the threads, which the next product starts anew."""
        self._handle.openblas_read_env()
        self._handle.blas_thread_shutdown_()

    def can(self, *names: str) -> bool:
        """Whether the library exports these internal functions."""
        return all(hasattr(self._handle, name) for name in names)

    def _named(self, name: str) -> Any:
        return getattr(self._handle, self._prefix + name + self._suffix)

    def _text(self, name: str) -> str:
        function = self._named(name)
        function.restype = ctypes.c_char_p
        return bytes(function()).decode()


_FUNCTIONS = (
    "cblas_dgemm",
    "cblas_sgemm",
    "openblas_get_config",
    "openblas_get_corename",
    "openblas_get_num_threads",
    "openblas_get_parallel",
    "openblas_set_num_threads",
)


@functools.cache
def library() -> OpenBLAS | None:
    """Return NumPy's OpenBLAS; None if NumPy uses another BLAS or its symbols are not found."""
    module = sys.modules.get("numpy._core._multiarray_umath")
    try:
        handle = ctypes.CDLL(str(getattr(module, "__file__", None)))
    except OSError:
        return None
    for prefix, suffix in _NAMINGS:
        if all(hasattr(handle, prefix + name + suffix) for name in _FUNCTIONS):
            return OpenBLAS(handle, prefix, suffix)
    return None


def cpu_features() -> set[str]:
    """Return the vector extensions that NumPy has found in this CPU, by NumPy's names."""
    config: Any = np.show_config(mode="dicts")
    extensions = config["SIMD Extensions"]
    return {each for kind in ("baseline", "found") for each in extensions.get(kind, ())}


def fitting_core(features: set[str]) -> str | None:
    """Return the kernels for a CPU with these features; None for one without AVX2."""
    for core, sets in _FITTING:
        if any(each <= features for each in sets):
            return core
    return None


def is_slower(core: str, than: str | None) -> bool:
    """Whether kernels use fewer vector instructions than others; False for unknown names."""
    rank, other = _CORES.get(core.lower()), _CORES.get((than or "").lower())
    return rank is not None and other is not None and rank < other


def forced_core() -> str | None:
    """Return the kernels that OPENBLAS_CORETYPE names; None if it is not set."""
    return os.environ.get(CORE_VARIABLE) or None


def prepare() -> None:
    """Give OpenBLAS kernels that fit the CPU, and sleeping threads, if it started otherwise.

    OpenBLAS reads the environment when NumPy is imported, which may have been before offgrad.
    Kernels that the user has chosen stay. Warns of unfit kernels that cannot be changed.
    """
    found = library()
    if found is None:
        return
    fitting = fitting_core(cpu_features())
    if forced_core() is None and is_slower(found.core(), fitting):
        assert fitting is not None
        if _is_idle() and found.can("gotoblas_dynamic_quit", "gotoblas_dynamic_init"):
            _choose(found, fitting)
        else:
            warnings.warn(
                f"OpenBLAS multiplies matrices with its kernels for {found.core()}, although this "
                f"CPU has the instructions of those for {fitting}. Set {CORE_VARIABLE}={fitting} "
                "in the environment before Python starts, or import offgrad before threads start",
                RuntimeWarning,
                stacklevel=3,
            )
    timeout = os.environ.get(TIMEOUT_VARIABLE, "")
    started_otherwise = timeout.isdecimal() and found.thread_timeout() == 0 != int(timeout)
    if started_otherwise and _is_idle() and found.can("openblas_read_env", "blas_thread_shutdown_"):
        found.restart_threads()


def _choose(found: OpenBLAS, core: str) -> None:
    os.environ[CORE_VARIABLE] = core
    try:
        found.choose_core()
    finally:
        del os.environ[CORE_VARIABLE]  # other libraries choose for themselves


def _is_idle() -> bool:
    """Whether no product can run: this thread holds the GIL, and any other one waits."""
    others = (frame for ident, frame in sys._current_frames().items() if ident != get_ident())
    return all((each.f_globals.get("__name__"), each.f_code.co_name) in _WAITS for each in others)


_WAITS = (("threading", "wait"), ("selectors", "select"))
"""Functions in which threads wait for locks, events and input."""
