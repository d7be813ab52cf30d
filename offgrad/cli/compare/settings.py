"""The environment variables that workers read, checked before any worker starts."""

import importlib.util
from pathlib import Path

from offgrad import kernels
from offgrad.cli.compare.config import Config
from offgrad.cli.folders import check_spill_directory


def check_settings() -> Path:
    """Check OFFGRAD_NUM_THREADS, OFFGRAD_KERNELS and OFFGRAD_SPILL_DIR; return the last.

    Raises:
        ValueError: for an invalid value; the message is one line.
    """
    kernels.get_num_threads()
    kernels.backend()
    return check_spill_directory()


def check_torch(config: Config, largest_batch: bool) -> None:
    """Check that PyTorch can train what `config` says.

    Raises:
        ValueError: if not; the message is one line.
    """
    if not config.is_model:
        raise ValueError(f"--torch trains built-in models alone, not {config.target}")
    if largest_batch:
        raise ValueError("--largest-batch limits tensors of offgrad, not those of --torch")
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--torch needs PyTorch, which is not installed")
