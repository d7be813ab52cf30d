"""The environment variables that workers read, checked before any worker starts."""

import tempfile

from offgrad_storage.files.spill_directory import spill_directory

from offgrad import kernels


def check_settings() -> None:
    """Check OFFGRAD_NUM_THREADS, OFFGRAD_KERNELS and OFFGRAD_SPILL_DIR.

    Raises:
        ValueError: for an invalid value; the message is one line.
    """
    kernels.get_num_threads()
    kernels.backend()
    try:
        with tempfile.TemporaryFile(dir=spill_directory()):
            pass
    except OSError as error:
        raise ValueError(
            f"the directory of stores cannot be written to: {error}; set OFFGRAD_SPILL_DIR to "
            "another one"
        ) from None
