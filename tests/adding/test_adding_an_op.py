"""A new operation takes edits of at most four source files.

The test adds a cube root to a copy of the package, as CONTRIBUTING describes: the operation, its
method, its in-place form and ``out=``. A subprocess uses it in a session that writes to disk.
"""

from pathlib import Path

from tests.adding.copies import Edits, run_in_copy

OPERATION = '''

class Cbrt(Op):
    """Cube root; keeps the result."""

    is_recomputable = True

    def forward(self, x: Array) -> Array:
        """Return the root."""
        result = compute(np.cbrt, x)
        self.save(result=result)
        return result

    def backward(self, grad: "Tensor") -> Any:
        """d(x^(1/3)) = 1 / (3 x^(2/3)) dx."""
        result = self.saved("result")
        return grad / (3 * result * result)


def cbrt(input: "Tensor") -> "Tensor":
    """Return the cube root of real numbers."""
    check_ordered(check_tensor(input, "cbrt"), "cbrt")
    return Cbrt.apply(floating(input, "cbrt"))


cbrt_ = inplace_form(cbrt)
'''

EDITS: Edits = {
    "offgrad/ops/_elementwise/exponential.py": [
        ("__all__ = [", '    "cbrt",\n    "cbrt_",\n'),
        ("", OPERATION),
    ],
    "offgrad/_tensor/methods.py": [
        ("    broadcast_to = ops.broadcast_to", "    cbrt = ops.cbrt\n")
    ],
    "offgrad/_tensor/inplace.py": [
        ("    bitwise_xor_ = inplace_form(ops.bitwise_xor)", "    cbrt_ = ops.cbrt_\n")
    ],
    "offgrad/_out.py": [('NAMES = """', "    cbrt\n")],
}

PROGRAM = """
import sys
from pathlib import Path

import numpy as np

import offgrad
from offgrad.autograd import gradcheck, gradgradcheck

assert Path(offgrad.__file__).is_relative_to(sys.argv[1])
assert {"cbrt", "cbrt_"} <= {*offgrad.__all__}

numbers = np.linspace(1, 9, 40_000)
roots = np.cbrt(numbers)
slopes = 1 / (3 * roots**2)
x = offgrad.tensor(numbers, requires_grad=True)
with offgrad.offload("disk") as session:
    results = [offgrad.cbrt(x), x.cbrt(), (x * 1).cbrt_(), offgrad.cbrt_(x * 1)]
    for result in results:
        np.testing.assert_allclose(result.detach().numpy(), roots)
        (grad,) = offgrad.autograd.grad(result.sum(), x)
        np.testing.assert_allclose(grad.numpy(), slopes)
saved = [row for row in session.ledger.rows if row.op == "CbrtBackward0"]
assert sum(row.writes for row in saved) == 4 and {row.slot for row in saved} == {"result"}, saved

out = offgrad.empty(x.shape, dtype=x.dtype)
with offgrad.no_grad():
    assert offgrad.cbrt(x, out=out) is out
np.testing.assert_allclose(out.numpy(), roots)

few = offgrad.tensor([0.5, 1.0, 2.0], dtype=offgrad.float64, requires_grad=True)
with offgrad.offload("disk"):
    for function in (offgrad.cbrt, lambda x: offgrad.cbrt_(x * 1)):
        assert gradcheck(function, (few,)) and gradgradcheck(function, (few,))
print("done")
"""


def test_a_new_operation_takes_four_files(tmp_path: Path) -> None:
    assert len(EDITS) <= 4
    run_in_copy(tmp_path, EDITS, PROGRAM)
