"""``torch._dynamo.config``: settings can be read and set; nothing is compiled."""

import sys as _sys

from offgrad._config_patch import patcher as _patcher

accumulated_cache_size_limit = accumulated_recompile_limit = 256
allow_unspec_int_on_nn_module = False
assume_static_by_default = True
automatic_dynamic_shapes = True
cache_size_limit = recompile_limit = 8
capture_dynamic_output_shape_ops = False
capture_scalar_outputs = False
compiled_autograd = False
disable = False
error_on_recompile = False
force_parameter_static_shapes = True
guard_nn_modules = True
inline_inbuilt_nn_modules = True
optimize_ddp = True
specialize_int = False
suppress_errors = False
verbose = False

patch = _patcher(_sys.modules[__name__])
