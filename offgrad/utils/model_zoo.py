"""``torch.utils.model_zoo``: the former place of `offgrad.hub.load_state_dict_from_url`."""

from importlib import import_module as _import
from typing import Any as _Any

from offgrad._missing import missing as _missing

__all__ = ["load_url"]


def load_url(url: str, *args: _Any, **kwargs: _Any) -> _Any:
    """Load a state dict that was downloaded before: see `offgrad.hub.load_state_dict_from_url`."""
    return _import("offgrad.hub").load_state_dict_from_url(url, *args, **kwargs)


__getattr__ = _missing("offgrad.utils.model_zoo")
