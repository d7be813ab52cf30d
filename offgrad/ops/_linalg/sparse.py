"""The product of a sparse matrix and a dense one."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class SparseAddmm(Op):
    """A sparse matrix times a dense one; keeps the values and the dense matrix."""

    def forward(
        self, values: Array, dense: Array, rows: Array, columns: Array, count: int
    ) -> Array:
        """Return [count, k]: the sums of ``values[i] * dense[columns[i]]`` at ``rows[i]``."""
        from scipy.sparse import coo_matrix

        self.rows, self.columns, self.dense_rows = rows, columns, dense.shape[0]
        need_values, need_dense = self.needs_input_grad
        self.save(values=values if need_dense else None, mat2=dense if need_values else None)
        matrix = coo_matrix((values, (rows, columns)), (count, dense.shape[0])).tocsr()
        return memory.contiguous(np.asarray(matrix @ dense, values.dtype))

    def backward(self, grad: "Tensor") -> Any:
        """The values get the products of their rows of G and B; B gets A^H G."""
        need_values, need_dense = self.needs_input_grad
        grad_values = grad_dense = None
        if need_values:
            dense = self.saved("mat2")
            grad_values = (grad[wrap(self.rows)] * dense[wrap(self.columns)].conj()).sum(-1)
        if need_dense:
            grad_dense = SparseAddmm.apply(
                self.saved("values").conj(),
                grad,
                rows=self.columns,
                columns=self.rows,
                count=self.dense_rows,
            )
        return grad_values, grad_dense
