"""``torch.backends.cpu``: what the processor can do."""

from importlib import import_module as _import

from offgrad._missing import missing as _missing


def get_cpu_capability() -> str:
    """Return the widest vector instructions that NumPy uses: "AVX512", "AVX2", "DEFAULT"."""
    features = _import("numpy._core._multiarray_umath").__cpu_features__
    if features.get("AVX512F"):
        return "AVX512"
    return "AVX2" if features.get("AVX2") else "DEFAULT"


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.backends.cpu")
