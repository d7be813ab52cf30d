"""``torch.onnx``: nothing is exported; a model may ask whether it is."""

from offgrad import _refused
from offgrad._missing import missing as _missing

export = _refused.functions(
    "offgrad.onnx", "export", "offgrad exports no graphs; save the weights with offgrad.save"
)["export"]


def is_in_onnx_export() -> bool:
    """Return False."""
    return False


__all__ = ["export", "is_in_onnx_export"]

__getattr__ = _missing("offgrad.onnx")
