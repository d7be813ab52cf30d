"""``torch.testing``: comparisons in tests, and random tensors for them."""

from typing import Any as _Any

from offgrad._missing import missing as _missing
from offgrad._testing import assert_close, make_tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]


def assert_allclose(
    actual: _Any,
    expected: _Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Raise unless two values are close; `assert_close` is newer, and checks the dtypes, too."""
    assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        check_dtype=False,
        msg=msg or None,
    )


__getattr__ = _missing("offgrad.testing")
