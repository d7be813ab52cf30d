"""``torch.autograd.anomaly_mode``: the contexts that find the forward calls of NaN gradients."""

from offgrad._missing import missing as _missing
from offgrad.autograd.anomaly import detect_anomaly, set_detect_anomaly

__all__ = ["detect_anomaly", "set_detect_anomaly"]

__getattr__ = _missing("offgrad.autograd.anomaly_mode")
