"""``torch.torch_version``: a version that compares with texts and tuples."""

from offgrad._missing import missing as _missing
from offgrad._version import TorchVersion

__all__ = ["TorchVersion"]

__getattr__ = _missing("offgrad.torch_version")
