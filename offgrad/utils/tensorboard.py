"""``torch.utils.tensorboard``: offgrad writes no event files; `SummaryWriter` says so."""

from offgrad import _refused
from offgrad._missing import missing as _missing

globals().update(
    _refused.classes(
        "offgrad.utils.tensorboard",
        "FileWriter SummaryWriter",
        "offgrad writes no event files; tensorboardX.SummaryWriter takes NumPy arrays and numbers",
        ImportError,
    )
)

__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.utils.tensorboard")
