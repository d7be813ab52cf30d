"""``torch._inductor.config``: settings can be read and set; nothing is compiled."""

import sys as _sys
from types import SimpleNamespace as _SimpleNamespace

from offgrad._config_patch import patcher as _patcher

compile_threads = 1
conv_1x1_as_mm = False
coordinate_descent_check_all_directions = False
coordinate_descent_tuning = False
cpp_wrapper = False
debug = False
epilogue_fusion = True
fallback_random = False
force_disable_caches = False
force_fuse_int_mm_with_mul = False
freezing = False
fx_graph_cache = True
layout_optimization = True
max_autotune = False
max_autotune_gemm = False
max_autotune_gemm_backends = "ATEN,TRITON,CPP"
max_autotune_pointwise = False
shape_padding = True
use_mixed_mm = True

cpp = _SimpleNamespace(enable_kernel_profile=False, simdlen=None, threads=-1, weight_prepack=True)
cuda = _SimpleNamespace()
trace = _SimpleNamespace(enabled=False, graph_diagram=False)
triton = _SimpleNamespace(cudagraph_trees=True, cudagraphs=False, unique_kernel_names=True)

patch = _patcher(_sys.modules[__name__])
