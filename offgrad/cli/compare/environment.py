"""A description of the machine, for the results."""

import os
import platform
from typing import Any

import numpy as np
import psutil

from offgrad._config import cpu_name
from offgrad.kernels import _openblas


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory (bytes), system and versions."""
    return {
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_nbytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas(),
    }


def _blas() -> str:
    """Return name and version and, for OpenBLAS, its kernels: speed and bits depend on them."""
    from threadpoolctl import threadpool_info

    found = [each for each in threadpool_info() if each["user_api"] == "blas"]
    text = ", ".join(f"{each['internal_api']} {each['version']}" for each in found)
    library = _openblas.library()
    return text if library is None else f"{text} with kernels for {library.core()}"
