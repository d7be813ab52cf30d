"""``torch.version``: offgrad's own version, and what it was built with: neither CUDA nor HIP."""

from offgrad._version import __version__ as __version__

debug = False
cuda: str | None = None
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
git_version = "unknown"

__all__ = ["cuda", "debug", "git_version", "hip", "rocm", "xpu"]
