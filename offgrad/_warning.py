"""Warnings that point at the line of the program."""

import os
import sys
import warnings

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def warn_program(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not of this library.

    Frames are not counted for ``stacklevel``, which leaves out some of them.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__") or "<unknown>",
        names.setdefault("__warningregistry__", {}),
    )
