"""The machine that a profile was recorded on."""

import os
import platform
from typing import Any

import numpy as np

from offgrad import kernels
from offgrad._config import cpu_name
from offgrad.kernels import _bfloat16_tiles


def describe_machine() -> dict[str, Any]:
    """Return processor, threads, memory (bytes), system and versions."""
    import psutil  # slow to import

    return {
        "cpu": cpu_name(),
        "threads": os.cpu_count(),
        "kernel_threads": kernels.get_num_threads(),
        "memory_nbytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernels": kernels.backend(),
        "bfloat16_products": _bfloat16_tiles.instructions() or "float32",
    }
