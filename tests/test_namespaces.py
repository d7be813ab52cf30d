"""Modules of PyTorch that ask for devices, compilers and processes: they answer as on a CPU."""

import importlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn

ANSWERS = """
cuda.is_available()
cuda.device_count()
cuda.is_initialized()
cuda.is_bf16_supported()
cuda.manual_seed(3)
cuda.manual_seed_all(3)
cuda.seed_all()
cuda.empty_cache()
cuda.memory_allocated()
cuda.max_memory_allocated()
cuda.memory_reserved()
cuda.memory_stats()
cuda.get_arch_list()
cuda.get_rng_state_all()
cuda.synchronize()
cuda.current_device()
cuda.get_device_name(0)
cuda.get_device_properties(0)
cuda.mem_get_info()
cuda.init()
cuda.current_stream()
backends.cudnn.benchmark
backends.cudnn.deterministic
backends.cudnn.enabled
backends.cudnn.is_available()
backends.cudnn.version()
backends.cuda.is_built()
backends.cuda.matmul.allow_tf32
backends.cuda.flash_sdp_enabled()
backends.mps.is_available()
backends.mps.is_built()
mps.is_available()
mps.device_count()
xpu.is_available()
xpu.device_count()
accelerator.is_available()
accelerator.current_accelerator()
accelerator.device_count()
accelerator.synchronize()
cpu.is_available()
cpu.device_count()
cpu.synchronize()
cpu.current_device()
jit.is_scripting()
jit.is_tracing()
jit.annotate(int, 3)
compiler.is_compiling()
distributed.is_initialized()
distributed.all_reduce(t.ones(1))
distributed.barrier()
distributed.ReduceOp.SUM.name
version.cuda
version.hip
version.debug
are_deterministic_algorithms_enabled()
use_deterministic_algorithms(True, warn_only=True)
are_deterministic_algorithms_enabled()
is_deterministic_algorithms_warn_only_enabled()
get_deterministic_debug_mode()
use_deterministic_algorithms(False)
get_deterministic_debug_mode()
set_deterministic_debug_mode("x")
set_deterministic_debug_mode(7)
set_deterministic_debug_mode([])
get_float32_matmul_precision()
set_float32_matmul_precision("high")
get_float32_matmul_precision()
set_float32_matmul_precision("bad")
set_float32_matmul_precision("highest")
set_num_interop_threads(0)
is_warn_always_enabled()
set_default_device("cpu")
str(get_default_device())
set_default_device(None)
compiled_with_cxx11_abi()
is_vulkan_available()
typename(3)
compile(mode="default", options={"a": 1})(len)
compile(backend="eager")(abs)(-3)
overrides.has_torch_function(())
overrides.is_tensor_like(t.ones(1))
overrides.is_tensor_like(1)
random.initial_seed() >= 0
isinstance(seed(), int)
manual_seed(5).initial_seed(), initial_seed(), random.initial_seed()
multiprocessing.get_sharing_strategy()
multiprocessing.set_sharing_strategy("bad")
set(multiprocessing.get_all_sharing_strategies())
"""


def answer(library: Any, call: str) -> Any:
    names = {name: getattr(library, name, None) for name in _names(call)} | {"t": library}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = eval(call, {key: value for key, value in names.items() if value is not None})
        except Exception as error:
            result = type(error)
    return result, [each.category for each in caught]


def _names(call: str) -> list[str]:
    import ast

    return [each.id for each in ast.walk(ast.parse(call)) if isinstance(each, ast.Name)]


@pytest.mark.parametrize("call", dict.fromkeys(ANSWERS.strip().splitlines()))
def test_answers_are_pytorchs(call: str) -> None:
    torch = pytest.importorskip("torch")
    for module in ("backends.cudnn", "accelerator", "distributed", "overrides"):
        importlib.import_module(f"torch.{module}")
    assert answer(offgrad, call) == answer(torch, call)


def test_flags_are_kept() -> None:
    from offgrad.backends import cuda, cudnn, mkldnn

    before = cudnn.benchmark
    cudnn.benchmark = True
    with cudnn.flags(enabled=False, deterministic=True):
        assert (cudnn.enabled, cudnn.deterministic, cudnn.benchmark) == (False, True, False)
    assert (cudnn.enabled, cudnn.deterministic, cudnn.benchmark) == (True, False, True)
    cudnn.benchmark = before
    with mkldnn.flags(enabled=False):
        assert not mkldnn.enabled
    assert mkldnn.enabled
    with cuda.sdp_kernel(enable_flash=False):
        assert not cuda.flash_sdp_enabled()
    cuda.enable_math_sdp(False)
    assert not cuda.math_sdp_enabled()
    cuda.enable_math_sdp(True)


CALLS_OF_STREAMS: tuple[Callable[[Any], Any], ...] = (
    lambda m: m.cuda.Event(enable_timing=True),
    lambda m: m.cuda.Stream(),
    lambda m: m.cuda.CUDAGraph(),
    lambda m: m.cuda.graph(None),
    lambda m: m.cuda.graph_pool_handle(),
    lambda m: m.cuda.make_graphed_callables(print, ()),
    lambda m: m.cuda.device(0).__enter__(),
)


@pytest.mark.parametrize("call", CALLS_OF_STREAMS)
def test_streams_raise_the_error_of_pytorch_without_cuda(call: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this PyTorch has CUDA")
    for m in (offgrad, torch):
        with pytest.raises(RuntimeError):
            call(m)


def test_what_needs_a_device_says_so() -> None:
    with pytest.raises(AssertionError, match="is_available"):
        vars(offgrad.cuda)["synchronize"]()
    for call in CALLS_OF_STREAMS:
        with pytest.raises(RuntimeError, match="is_available"):
            call(offgrad)
    assert not isinstance(offgrad.ones(1), offgrad.cuda.FloatTensor)
    with offgrad.cuda.stream(None), offgrad.cuda.device(None):
        pass
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        offgrad.distributed.new_group()
    assert (offgrad.distributed.get_rank(), offgrad.distributed.get_world_size()) == (0, 1)
    assert not offgrad.distributed.is_available()


def test_compiling_returns_what_it_got() -> None:
    model = nn.Linear(1, 1)
    assert offgrad.compile(model, mode="max-autotune", fullgraph=True)._orig_mod is model
    assert offgrad.jit.script(model) is model
    assert offgrad.jit.trace(model, offgrad.ones(1, 1)) is model

    @offgrad.compile
    def double(x: Any) -> Any:
        return 2 * x

    jit: Any = offgrad.jit
    undecorated: Any = lambda x: 3 * x
    triple = jit.export(jit.unused(jit.ignore(drop=True)(jit.ignore(undecorated))))
    assert offgrad.compiler.disable(triple) is undecorated

    class Scripted(jit.ScriptModule):  # type: ignore[misc]
        forward = jit.script_method(lambda self, x: x)

    assert (double(1), triple(1), Scripted()(1)) == (2, 3, 1)
    assert offgrad.jit.wait(offgrad.jit.fork(double, 4)) == 8
    with pytest.raises(RuntimeError, match="no TorchScript"):
        offgrad.jit.load("x.pt")


def test_random_states() -> None:
    offgrad.manual_seed(3)
    with offgrad.random.fork_rng():
        first = offgrad.rand(2).tolist()
    assert offgrad.rand(2).tolist() == first
    state = offgrad.random.get_rng_state()
    second = offgrad.rand(1).item()
    offgrad.random.set_rng_state(state)
    assert offgrad.rand(1).item() == second


def test_hub_reads_its_folder(tmp_path: Path) -> None:
    url = "https://example.org/models/small.pth"
    with pytest.raises(RuntimeError, match=r"downloads nothing.*small\.pth yourself"):
        offgrad.hub.load_state_dict_from_url(url, model_dir=str(tmp_path))
    offgrad.save({"x": offgrad.ones(1)}, tmp_path / "small.pth")
    state = offgrad.utils.model_zoo.load_url(url, model_dir=str(tmp_path), progress=False)
    assert state["x"].item() == 1
    assert offgrad.hub.get_dir().endswith("hub")
    with pytest.raises(RuntimeError, match="downloads nothing"):
        offgrad.hub.load("a/b", "c")


def test_small_modules() -> None:
    assert "offgrad" in offgrad.utils.collect_env.get_pretty_env_info()
    with pytest.raises(ImportError, match="event files"):
        offgrad.utils.tensorboard.SummaryWriter("runs")
    assert offgrad.version.__version__ == offgrad.__version__
    assert tuple(int(each) for each in offgrad.__version__.split(".")[:2]) >= (0, 1)
    assert offgrad.backends.cpu.get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT")


def _write(index: int, folder: str) -> None:
    Path(folder, str(index)).touch()


def _fail(index: int, kill: bool) -> None:
    if index == 1:
        if kill:
            os.kill(os.getpid(), 9)
        raise ValueError("no second process")
    import time

    time.sleep(60)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_processes(tmp_path: Path) -> None:
    start = offgrad.multiprocessing.start_processes
    start(_write, (str(tmp_path),), nprocs=2, start_method="fork")
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]
    with pytest.raises(
        offgrad.multiprocessing.ProcessRaisedException, match=r"(?s)Process 1 .*no second process"
    ):
        start(_fail, (False,), nprocs=2, start_method="fork")
    with pytest.raises(offgrad.multiprocessing.ProcessExitedException, match="SIGKILL"):
        start(_fail, (True,), nprocs=2, start_method="fork")


def test_marks_for_tracing() -> None:
    def function() -> int:
        return 3

    assert offgrad.fx.wrap(function) is function
    assert offgrad.fx.wrap("name") == "name"
    with pytest.raises(RuntimeError, match="traces no programs"):
        vars(offgrad.fx)["symbolic_trace"](function)


def test_flat_tensors() -> None:
    utils = offgrad._utils
    parts = [offgrad.ones(2, 3), offgrad.zeros(4)]
    flat = utils._flatten_dense_tensors(parts)
    assert flat.shape == (10,)
    assert [each.shape for each in utils._unflatten_dense_tensors(flat, parts)] == [(2, 3), (4,)]
    assert utils._element_size(offgrad.bfloat16) == 2


def test_timers() -> None:
    timer = offgrad.utils.benchmark.Timer(
        "x + y", setup="y = 1", globals={"x": 2}, label="sum", num_threads=1
    )
    before = offgrad.get_num_threads()
    once = timer.timeit(10)
    assert (len(once.times), once.number_per_run) == (1, 10)
    assert once.median == once.mean > 0
    found = timer.blocked_autorange(min_run_time=0.001)
    assert sum(found.raw_times) >= 0.001
    assert repr(found).startswith("sum\n  Median:")
    assert len(timer.adaptive_autorange(min_run_time=0.0001, max_run_time=0.001).times) > 1
    assert offgrad.get_num_threads() == before


def test_versions_compare_by_numbers() -> None:
    kind = offgrad.torch_version.TorchVersion
    version = kind("2.13.0+cpu")
    assert version > "2.9"
    assert version >= (2, 13)
    assert version == (2, 13)
    assert version == "2.13"
    assert version != "2.13.1"
    assert version < "3"
    assert version <= "2.13.0"
    assert not version > (2, 13)
    assert version < "unknown"
    assert isinstance(offgrad.__version__, kind)
    assert {offgrad.__version__: 1}[offgrad.__version__] == 1


def test_futures() -> None:
    futures = offgrad.futures
    first, second = futures.Future(), futures.Future()
    tripled = first.then(lambda future: future.value() * 3)
    failed = second.then(lambda future: future.wait())
    both = futures.collect_all([first, second])
    assert not first.done()
    with pytest.raises(RuntimeError, match="not been set"):
        first.value()
    first.set_result(2)
    assert tripled.wait() == 6
    assert not both.done()
    second.set_exception(ValueError("no"))
    assert both.wait() == [first, second]
    with pytest.raises(ValueError, match="no"):
        failed.wait()
    with pytest.raises(RuntimeError, match="only once"):
        first.set_result(3)
    assert futures.wait_all([first, tripled]) == [2, 6]
    assert offgrad.wait(offgrad.fork(abs, -4)) == 4
    assert futures.collect_all([]).wait() == []


def test_modules_of_devices() -> None:
    assert offgrad.get_device_module() is offgrad.cpu
    assert offgrad.get_device_module("cuda:0") is offgrad.cuda
    assert offgrad.ones(3)[offgrad.newaxis].shape == (1, 3)
    assert offgrad.GradScaler is offgrad.amp.GradScaler


def test_marks_for_profilers() -> None:
    @offgrad.profiler.record_function("outer")
    def function() -> int:
        with offgrad.autograd.profiler.record_function("inner", "args") as mark:
            assert mark.name == "inner"
            return 3

    assert function() == 3
    with pytest.raises(ZeroDivisionError), offgrad.profiler.record_function("error"):
        1 / 0


def test_functions_of_the_package_in_torch_functional() -> None:
    for name in offgrad.functional.__all__:
        assert getattr(offgrad.functional, name) is getattr(offgrad.ops, name)


def test_causal_masks_of_attention() -> None:
    """PyTorch's results, for fewer, as many and more queries than keys."""
    torch = pytest.importorskip("torch")
    importlib.import_module("torch.nn.attention.bias")
    for queries, keys in ((3, 5), (4, 4), (5, 3)):
        found = []
        for m in (offgrad, torch):
            bias = importlib.import_module(f"{m.__name__}.nn.attention.bias")
            values = m.arange(2.0 * 8 * 4).reshape(1, 2, 8, 4).sin()
            q = values[:, :, :queries].clone().requires_grad_()
            k = values[:, :, 8 - keys :].clone()
            results = []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                masks = (
                    bias.causal_upper_left(queries, keys),
                    bias.causal_lower_right(queries, keys),
                )
            for mask in masks:
                result = m.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)
                result.square().sum().backward()
                results += [result.detach().numpy(), q.grad.numpy().copy()]
                assert (mask.seq_len_q, mask.seq_len_kv) == (queries, keys)
                assert isinstance(mask, m.Tensor)
            assert [mask.variant.name for mask in masks] == ["UPPER_LEFT", "LOWER_RIGHT"]
            found.append(results)
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


def test_causal_masks_refuse_other_arguments() -> None:
    bias = offgrad.nn.attention.bias
    with pytest.raises(AssertionError, match="2D"):
        bias.causal_lower_right(3)
    with pytest.raises(AssertionError, match="CausalVariant"):
        bias.CausalBias(1, 2, 3)
    with pytest.warns(UserWarning, match="attend to no key"):
        bias.causal_lower_right(3, 2)


def test_marks_of_nvidia_need_cuda() -> None:
    nvtx = offgrad.cuda.nvtx

    @nvtx.range("step {}", 1)  # type: ignore[untyped-decorator]
    def step() -> None:
        raise NotImplementedError

    calls = (lambda: nvtx.range_push("a"), nvtx.range_pop, lambda: nvtx.mark("a"), step)
    for call in calls:
        with pytest.raises(RuntimeError, match="NVTX functions not installed"):
            call()


def test_settings_of_compilers() -> None:
    dynamo = importlib.import_module("offgrad._dynamo.config")
    inductor = importlib.import_module("offgrad._inductor.config")
    assert dynamo is offgrad._dynamo.config
    assert inductor is offgrad._inductor.config
    assert (dynamo.cache_size_limit, inductor.triton.cudagraphs) == (8, False)
    with inductor.patch({"triton.cudagraphs": True}, max_autotune=True):
        assert inductor.triton.cudagraphs
        assert inductor.max_autotune
    with pytest.raises(ZeroDivisionError), dynamo.patch("verbose", True):
        1 / (1 - dynamo.verbose)
    assert not inductor.triton.cudagraphs
    assert not inductor.max_autotune
    assert not dynamo.verbose
    dynamo.anything = 3
    assert dynamo.anything == 3


def test_modules_that_hold_names_of_others() -> None:
    assert offgrad.cuda.random.manual_seed_all is offgrad.cuda.manual_seed_all
    assert offgrad.cuda.random.get_rng_state_all() == []
    assert offgrad.autograd.anomaly_mode.detect_anomaly is offgrad.autograd.detect_anomaly
    assert offgrad.utils.deterministic.fill_uninitialized_memory
