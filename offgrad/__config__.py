"""``torch.__config__``: the machine and the libraries as text."""

import contextlib as _contextlib
import io as _io

from offgrad import kernels as _kernels
from offgrad._config import show_config as _show_config

__all__ = ["parallel_info", "show"]


def show() -> str:
    """Return what `offgrad.show_config` prints."""
    text = _io.StringIO()
    with _contextlib.redirect_stdout(text):
        _show_config()
    return text.getvalue()


def parallel_info() -> str:
    """Return the number of threads."""
    return f"offgrad.get_num_threads(): {_kernels.get_num_threads()}\n"
