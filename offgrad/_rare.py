"""Names of `offgrad` whose modules are imported when a program uses one of them."""

SPARSE = """
    ccol_indices_copy col_indices_copy crow_indices_copy dsmm hsmm hspmm indices_copy
    resize_as_sparse_ row_indices_copy saddmm smm sparse_bsc_tensor sparse_bsr_tensor
    sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor spmm sspaddmm
    values_copy
"""
"""Functions of sparse tensors, in ``_tensor/sparse/constructors.py``."""
