"""Warnings that point at the line of the program."""

import sys
import warnings


def warn_program(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not of this library."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "offgrad":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
