"""``torch.cuda.random``: the functions of ``offgrad.cuda`` for random numbers."""

from offgrad import cuda as _cuda
from offgrad._missing import missing as _missing

_NAMES = """
    get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed seed_all
    set_rng_state set_rng_state_all
"""

globals().update({name: getattr(_cuda, name) for name in _NAMES.split()})

__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.cuda.random")
