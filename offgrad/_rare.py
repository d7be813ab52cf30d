"""Names of `offgrad` whose modules are imported when a program uses one of them."""

SPARSE = """
    ccol_indices_copy col_indices_copy crow_indices_copy dsmm hsmm hspmm indices_copy
    resize_as_sparse_ row_indices_copy saddmm smm sparse_bsc_tensor sparse_bsr_tensor
    sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor spmm sspaddmm
    values_copy
"""
"""Functions of sparse tensors, in ``_tensor/sparse/constructors.py``."""

NAMES: dict[str, str] = {"Future": "futures", "GradScaler": "amp", "fork": "jit", "wait": "jit"}
"""The modules of other names."""

for _module, _names in {
    "_tensor.sparse.constructors": SPARSE,
    "_checks": """
        _assert _check _check_index _check_is_size _check_not_implemented _check_tensor_all
        _check_type _check_value _check_with
    """,
    "_symbolic": """
        SymBool SymFloat SymInt sym_constrain_range sym_constrain_range_for_size sym_float
        sym_fresh_size sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum
    """,
    "_control_flow": "cond while_loop",
    "_low_rank": "lobpcg pca_lowrank svd_lowrank",
    "_rare_functions": """
        AcceleratorError batch_norm_update_stats classproperty cudnn_is_acceptable from_file
        get_file_path init_num_threads set_anomaly_enabled set_autocast_gpu_dtype
        thread_safe_generator
    """,
    "_quantized": """
        dequantize int_repr per_channel_affine per_channel_affine_float_qparams
        per_channel_symmetric per_tensor_affine per_tensor_symmetric q_per_channel_axis
        q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qint32 qint8 qscheme
        quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic quint8
    """,
    "ops._nn.fake_quantization": """
        fake_quantize_per_channel_affine fake_quantize_per_tensor_affine
        fused_moving_avg_obs_fake_quant
    """,
    "signal": "windows",
    "jit": "ScriptFunction ScriptModule",
}.items():
    NAMES.update(dict.fromkeys(_names.split(), _module))
