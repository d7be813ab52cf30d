"""The constants by which PyTorch code names layouts and orders of memory."""

from typing import Any


class _Constant:
    """A named value; pickled and copied it stays the same object."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"

    def __reduce__(self) -> Any:
        return _constant, (self._name,)


class layout(_Constant):
    """How a tensor's elements lie in memory: `strided` is the one that tensors have."""

    __slots__ = ()


class memory_format(_Constant):
    """The order of dimensions in memory: `channels_last` keeps a pixel's channels together."""

    __slots__ = ()


layout.__module__ = memory_format.__module__ = "offgrad"

strided, sparse_coo, sparse_csr = layout("strided"), layout("sparse_coo"), layout("sparse_csr")
sparse_csc, sparse_bsr, sparse_bsc = (
    layout("sparse_csc"),
    layout("sparse_bsr"),
    layout("sparse_bsc"),
)
jagged = layout("jagged")
contiguous_format = legacy_contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")


def _constant(name: str) -> Any:
    return globals()[name]
