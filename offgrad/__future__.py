"""Settings of how modules convert their parameters, as in ``torch.__future__``."""

from offgrad.nn.conversions import settings as _settings

__all__ = [
    "get_overwrite_module_params_on_conversion",
    "get_swap_module_params_on_conversion",
    "set_overwrite_module_params_on_conversion",
    "set_swap_module_params_on_conversion",
]


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Choose whether `Module.to` and its like make new parameters, or give the old ones new data.

    Args:
        value: True for new ones; by default the old ones stay.
    """
    _settings.overwrite = value


def get_overwrite_module_params_on_conversion() -> bool:
    """Return whether conversions of modules make new parameters."""
    return _settings.overwrite


def set_swap_module_params_on_conversion(value: bool) -> None:
    """Choose whether conversions of modules swap the contents of parameters.

    Args:
        value: accepted; parameters stay the same objects either way.
    """
    _settings.swap = value


def get_swap_module_params_on_conversion() -> bool:
    """Return what `set_swap_module_params_on_conversion` has set."""
    return _settings.swap
