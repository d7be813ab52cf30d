"""What decides offgrad's speed on this machine."""

import platform
from pathlib import Path
from typing import Any

import offgrad_storage

from offgrad import kernels
from offgrad._settings import get_float32_matmul_precision
from offgrad.kernels import _bfloat16_tiles, _blas, _openblas

_PACKAGES = ("offgrad", "numpy", "numba", "ml_dtypes", "zarr", "numcodecs")


def show_config(mode: str = "stdout") -> dict[str, dict[str, Any]] | None:
    """Print versions, CPU, BLAS and its kernels, threads, offgrad's kernels and spill directory.

    Args:
        mode: "stdout" prints and returns None; "dicts" returns the same as dictionaries.

    "BLAS" has "remedy" if an environment variable makes products use fewer of the CPU's
    instructions than they could.

    Raises:
        ValueError: for another mode.
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"show_config: mode must be 'stdout' or 'dicts', got {mode!r}")
    config: dict[str, dict[str, Any]] = {
        "Versions": {"python": platform.python_version()} | versions(),
        "CPU": {"name": cpu_name(), "SIMD extensions": sorted(_openblas.cpu_features())},
        "BLAS": blas_config(),
        "Threads": {"kernels": kernels.get_num_threads(), "BLAS": _blas.blas_threads()},
        "Kernels": {
            "backend": kernels.backend(),
            "bfloat16 products": _bfloat16_tiles.instructions() or "in float32",
            "float32 products": f"{get_float32_matmul_precision()} precision",
        },
        "Stores": {"spill directory": str(offgrad_storage.spill_directory())},
    }
    if mode == "dicts":
        return config
    for section, entries in config.items():
        print(f"{section}:")
        for name, value in entries.items():
            print(f"  {name}: {', '.join(value) if isinstance(value, list) else value}")
    return None


def versions() -> dict[str, str | None]:
    """Return the versions of offgrad and of the packages it stands on; None for a missing one."""
    from importlib import metadata  # takes 30 ms

    found: dict[str, str | None] = {}
    for each in _PACKAGES:
        try:
            found[each] = metadata.version(each)
        except metadata.PackageNotFoundError:
            found[each] = None
    return found


def cpu_name() -> str:
    """Return the model of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def blas_config() -> dict[str, Any]:
    """Return what is known of NumPy's BLAS, with "remedy" if other kernels would be faster."""
    library = _openblas.library()
    if library is None:
        return {"library": "not an OpenBLAS that offgrad can inspect"}
    core, fitting = library.core(), _openblas.fitting_core(_openblas.cpu_features())
    found: dict[str, Any] = {
        "library": library.config(),
        "kernels": core,
        "thread timeout": library.thread_timeout(),
    }
    if _openblas.is_slower(core, fitting):
        forced = _openblas.forced_core()
        found["remedy"] = (
            f"this CPU has the instructions of the kernels for {fitting}: "
            + (
                f"unset {_openblas.CORE_VARIABLE}={forced}"
                if forced
                else f"set {_openblas.CORE_VARIABLE}={fitting}"
            )
            + " before Python starts"
        )
    return found
