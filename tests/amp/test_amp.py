"""Mixed precision, beside torch's on the CPU."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda m, a, b: a @ b,
    "mm": lambda m, a, b: m.mm(a, b),
    "bmm": lambda m, a, b: m.bmm(a[None], b[None]),
    "addmm": lambda m, a, b: m.addmm(a, a, b),
    "baddbmm": lambda m, a, b: m.baddbmm(a[None], a[None], b[None]),
    "einsum": lambda m, a, b: m.einsum("ij,jk->ik", a, b),
    "linear": lambda m, a, b: m.nn.functional.linear(a, b, b[0]),
    "conv": lambda m, a, b: m.nn.functional.conv2d(a[None, None], b[None, None]),
    "transposed conv": lambda m, a, b: m.nn.functional.conv_transpose1d(a[None], b[:, None]),
    "attention": lambda m, a, b: m.nn.functional.scaled_dot_product_attention(
        a[None], b[None], b[None]
    ),
    "doubles": lambda m, a, b: a.double() @ b.double(),
    "halves": lambda m, a, b: a.half() @ b.half(),
    "softmax": lambda m, a, b: a.softmax(-1),
    "softmax of 16 bits": lambda m, a, b: a.bfloat16().softmax(-1),
    "sum": lambda m, a, b: a.bfloat16() + b,
    "layer norm": lambda m, a, b: m.nn.functional.layer_norm(a, (4,)),
    "cross-entropy": lambda m, a, b: m.nn.functional.cross_entropy(a @ b, m.arange(4)),
    "negative log-likelihood": lambda m, a, b: m.nn.functional.nll_loss(a @ b, m.arange(4)),
    "squares": lambda m, a, b: m.nn.functional.mse_loss(a @ b, b),
    "distances": lambda m, a, b: m.nn.functional.smooth_l1_loss((a @ b), b.bfloat16()),
    "an outer product": lambda m, a, b: m.einsum("i,j->ij", a[0], b[0]),
    "a dot product by einsum": lambda m, a, b: m.einsum("i,i->", a[0], b[0]),
    "soft margins": lambda m, a, b: m.nn.functional.soft_margin_loss(
        a.bfloat16(), b.detach().sign().bfloat16()
    ),
    "logits": lambda m, a, b: m.nn.functional.binary_cross_entropy_with_logits(a @ b, b.sigmoid()),
}


def tensors(m: Any) -> list[Any]:
    rng = np.random.default_rng(4)
    return [m.tensor(rng.normal(size=(4, 4)).astype(np.float32)).requires_grad_() for _ in "ab"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dtypes_and_values(name: str, dtype: str) -> None:
    results: list[Any] = []
    for m in (offgrad, torch):
        a, b = tensors(m)
        with m.autocast("cpu", dtype=getattr(m, dtype)):
            result = FUNCTIONS[name](m, a, b)
        result.float().sum().backward()
        grad = None if a.grad is None else a.grad.float().numpy()
        results.append((str(result.dtype), result.detach().float().numpy(), grad))
    assert results[0][0] == results[1][0]
    np.testing.assert_allclose(results[0][1], results[1][1], 0.02, 0.05)
    np.testing.assert_allclose(results[0][2], results[1][2], 0.02, 0.05)


# Of a 16-bit matrix and of one that is far from singular.
IN_FLOAT32: dict[str, Callable[[Any, Any, Any], Any]] = {
    "prod": lambda m, a, b: (a.prod(), m.prod(a, 0), a.int().prod(), a.prod(0, dtype=m.bfloat16)),
    "trace": lambda m, a, b: m.trace(a),
    "quantile": lambda m, a, b: (m.quantile(a, 0.5), m.nanquantile(a, 0.3, dim=0)),
    "cdist": lambda m, a, b: m.cdist(a, b),
    "complex numbers": lambda m, a, b: (m.view_as_complex(a[:, :2]), m.polar(b, a)),
    "fft": lambda m, a, b: [
        getattr(m.fft, name)(a) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    ],
    "fft of planes": lambda m, a, b: [
        getattr(m.fft, f"{name}fft{dims}")(a) for name in ("", "i", "r", "ir") for dims in "2n"
    ],
    "stft": lambda m, a, b: m.stft(a.flatten(), 4, window=m.ones(4), return_complex=True),
    "inverse": lambda m, a, b: (
        m.inverse(b), m.linalg.inv(b), m.linalg.inv_ex(b)[0], b.pinverse(), m.cholesky_inverse(b),
        m.linalg.tensorinv(b, 1),
    ),
    "solve": lambda m, a, b: (
        m.linalg.solve(b, a), m.linalg.lstsq(b, a)[0], m.linalg.tensorsolve(b, a[0]),
        m.cholesky_solve(a, b), m.triangular_solve(a, b)[0],
        m.lu_solve(a, b, m.arange(1, 5).int()),
    ),
    "solve in float32": lambda m, a, b: (
        m.linalg.lu_solve(b.float(), m.arange(1, 5).int(), a.float())
    ),
    "decompositions": lambda m, a, b: (
        m.linalg.cholesky(b), m.linalg.cholesky_ex(b)[0], m.cholesky(b), m.lu(b)[0], m.geqrf(b),
        m.linalg.qr(b)[1].abs(), m.qr(b)[1].abs(), m.svd(b)[1], m.linalg.svd(b)[1],
        m.linalg.svdvals(b), m.linalg.eigvalsh(b), m.linalg.eigh(b)[0], m.linalg.eigvals(b).abs(),
        m.linalg.eig(b)[0].abs(), m.linalg.cond(b), m.linalg.matrix_rank(b),
    ),
    "reflections": lambda m, a, b: (
        m.linalg.householder_product(a, b[0]), m.orgqr(a, b[0]), m.ormqr(a, b[0], b),
    ),
    "grid_sample": lambda m, a, b: (
        m.nn.functional.grid_sample(a[None, None], a[None, None, :, :2], align_corners=False),
        m.grid_sampler(a[None, None], a[None, None, :, :2], 0, 0, False),
    ),
    "pools": lambda m, a, b: (
        m.nn.functional.avg_pool3d(a[None, None], 1), m.nn.functional.avg_pool2d(a[None], 2),
        m.nn.functional.max_pool3d(a[None, None], 1), m.nn.functional.max_pool2d(a[None], 2),
        m.nn.functional.max_pool3d(a[None, None], 1, return_indices=True),
        m.nn.functional.lp_pool3d(b[None, None], 2, 1),
        m.nn.functional.adaptive_avg_pool3d(a[None, None], 1),
        m.nn.functional.adaptive_max_pool3d(a[None, None], 1),
        m.nn.functional.adaptive_max_pool3d(a[None, None], 1, return_indices=True),
        m.nn.functional.fractional_max_pool2d(a[None], 1, 4),
        m.nn.functional.max_unpool2d(a[None], m.arange(16).reshape(1, 4, 4), 1),
    ),
    "padding": lambda m, a, b: [
        m.nn.functional.pad(a.reshape(1, 1, *sizes), (1, 1) * len(sizes), mode)
        for sizes in ((16,), (4, 4), (4, 2, 2))
        for mode in ("reflect", "replicate", "circular", "constant")
    ],
    "losses": lambda m, a, b: (
        m.nn.functional.cosine_embedding_loss(a, b, m.ones(4)),
        m.nn.functional.hinge_embedding_loss(a, b.sign()),
        m.nn.functional.margin_ranking_loss(a, b, b.sign()),
        m.nn.functional.poisson_nll_loss(a, b), m.nn.functional.triplet_margin_loss(a, b, b * 2),
        m.nn.functional.multi_margin_loss(a, m.arange(4)),
        m.nn.functional.multilabel_margin_loss(a, m.arange(16).reshape(4, 4) % 4),
        m.nn.functional.ctc_loss(
            a[:, None], m.tensor([[1, 2]]), m.tensor([4]), m.tensor([2]), reduction="sum"
        ),
    ),
    "fake quantization": lambda m, a, b: m.fake_quantize_per_tensor_affine(a, 0.1, 0, -128, 127),
    "widest": lambda m, a, b: (
        m.index_copy(a, 0, m.tensor([1]), b[:1].float()),
        m.index_copy(a.float(), 0, m.tensor([1]), b[:1]),
        m.index_copy(a, 0, m.tensor([1]), b[:1]), m.cat((a, b.float())),
    ),
    "in 16 bits": lambda m, a, b: (
        m.linalg.vecdot(a.float(), b), m.nn.functional.prelu(a.float(), b[0]),
    ),
    "in the dtype of the input": lambda m, a, b: (
        m.nn.functional.bilinear(a.float(), b.float(), b[None].float()),
        m.convolution(a[None].float(), b[None].float(), None, [1], [0], [1], False, [0], 1),
    ),
}  # fmt: skip


def flat(value: Any) -> list[Any]:
    return [value] if hasattr(value, "dtype") else [one for each in value for one in flat(each)]


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_operations_that_need_the_digits(name: str, dtype: str) -> None:
    found: list[list[Any]] = []
    for m in (offgrad, torch):
        a, b = (each.detach() for each in tensors(m))
        b = b.abs() * 0.1 + m.eye(4) * 3
        with m.autocast("cpu", dtype=getattr(m, dtype)):
            found.append(
                flat(IN_FLOAT32[name](m, a.to(getattr(m, dtype)), b.to(getattr(m, dtype))))
            )
    assert [str(each.dtype) for each in found[0]] == [str(each.dtype) for each in found[1]]
    for ours, theirs in zip(*found, strict=True):
        expected = theirs.resolve_conj().to(torch.complex64).numpy()
        np.testing.assert_allclose(ours.to(offgrad.complex64).numpy(), expected, 0.02, 0.05)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_recurrent_layers(kind: str, dtype: str) -> None:
    found: list[list[Any]] = []
    for m in (torch, offgrad):
        layer, cell = getattr(m.nn, kind)(4, 4), getattr(m.nn, f"{kind}Cell")(4, 4)
        for each, like in zip(
            (layer, cell), found[0][-2:] if found else (layer, cell), strict=True
        ):
            each.load_state_dict({k: m.tensor(v.tolist()) for k, v in like.state_dict().items()})
        x = tensors(m)[0].to(getattr(m, dtype))
        with m.autocast("cpu", dtype=m.bfloat16):
            results = flat((layer(x[:, None]), cell(x)))
        sum(each.float().sum() for each in results).backward()
        gradients = [each.grad for each in layer.parameters()]
        found.append([*results, *gradients, layer, cell])
    for theirs, ours in zip(found[0][:-2], found[1][:-2], strict=True):
        assert str(theirs.dtype) == str(ours.dtype)
        expected = theirs.detach().float().numpy()
        np.testing.assert_allclose(ours.detach().float().numpy(), expected, 0.05, 0.05)


def test_warnings_name_the_line_of_the_program() -> None:
    x = offgrad.ones(1, 1, 4, 4)
    with pytest.warns(UserWarning, match="align_corners") as caught:
        offgrad.nn.functional.grid_sample(x, offgrad.zeros(1, 4, 4, 2))
    with pytest.warns(UserWarning, match="window") as caught_of_stft:
        offgrad.stft(offgrad.ones(64), 16, return_complex=True)
    assert [caught[0].filename, caught_of_stft[0].filename] == [__file__, __file__]


def test_blocks_nest_and_decorate() -> None:
    a, b = tensors(offgrad)
    with offgrad.amp.autocast("cpu"):
        with offgrad.autocast(device_type="cpu", enabled=False):
            assert not offgrad.is_autocast_enabled("cpu")
            assert (a @ b).dtype == offgrad.float32
        with offgrad.autocast("cpu", dtype=offgrad.float16):
            assert (a @ b).dtype == offgrad.float16
        assert (a @ b).dtype == offgrad.bfloat16
        assert offgrad.is_autocast_cpu_enabled()
    assert (a @ b).dtype == offgrad.float32

    @offgrad.autocast("cpu")
    def function() -> Any:
        return a @ b

    assert function().dtype == offgrad.bfloat16
    with pytest.raises(ZeroDivisionError), offgrad.autocast("cpu"):
        1 / 0
    assert not offgrad.is_autocast_enabled("cpu")


def test_defaults() -> None:
    assert offgrad.get_autocast_dtype("cpu") is offgrad.bfloat16
    assert offgrad.get_autocast_gpu_dtype() is offgrad.float16
    offgrad.set_autocast_dtype("cpu", offgrad.float16)
    try:
        a, b = tensors(offgrad)
        with offgrad.autocast("cpu"):
            assert (a @ b).dtype == offgrad.float16
    finally:
        offgrad.set_autocast_cpu_dtype(offgrad.bfloat16)
    offgrad.set_autocast_enabled("cpu", True)
    assert (a @ b).dtype == offgrad.bfloat16
    offgrad.set_autocast_cpu_enabled(False)
    assert (a @ b).dtype == offgrad.float32
    assert offgrad.amp.is_autocast_available("cpu")
    assert not offgrad.amp.is_autocast_available("cuda")


def outcomes(m: Any) -> list[Any]:
    """Return what calls warn of or raise, by class, and some results."""
    calls: list[Callable[[], Any]] = [
        lambda: m.autocast("cpu", dtype=m.float32),
        lambda: m.autocast("cuda"),
        lambda: m.autocast("any"),
        lambda: m.autocast(3),
        lambda: m.cuda.amp.autocast(),
        lambda: m.cuda.amp.GradScaler(),
        lambda: m.cpu.amp.autocast(),
        lambda: m.cpu.amp.GradScaler(),
        lambda: m.amp.GradScaler(),
        lambda: m.amp.GradScaler("cpu", growth_factor=1.0),
        lambda: m.amp.GradScaler("cpu", backoff_factor=1.0),
        lambda: m.amp.GradScaler("cpu").load_state_dict({}),
        lambda: m.amp.GradScaler("cpu").update(),
        lambda: m.amp.GradScaler("cpu").scale(3),
        lambda: m.amp.custom_fwd(device_type=3),
    ]
    found = []
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                call()
                error = ""
            except Exception as raised:
                error = type(raised).__name__
        found.append((error, [each.category.__name__ for each in caught]))
    return found


def test_warnings_and_errors() -> None:
    assert outcomes(offgrad) == outcomes(torch)


def scaler_history(m: Any) -> list[Any]:
    param = m.nn.Parameter(m.ones(2))
    optimizer = m.optim.SGD([param], lr=0.1)
    scaler = m.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    rows: list[Any] = [scaler.state_dict()]
    for factor in (2.0, 1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0):
        optimizer.zero_grad()
        loss = (param * factor).sum()
        scaled = scaler.scale([loss, (loss,)])
        scaled[0].backward()
        if factor == 2:
            scaler.unscale_(optimizer)
            with pytest.raises(RuntimeError, match="already been called"):
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        scaler.update()
        rows.append((param.tolist(), scaler.get_scale(), scaler.state_dict()))
    scaler.update(8.0)
    other = m.amp.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    rows += [other.get_scale(), other.state_dict(), scaler.is_enabled()]
    optimizer.zero_grad()
    with pytest.raises(AssertionError, match="_scale is None"):
        other.step(optimizer)
    other.scale(loss)
    with pytest.raises(AssertionError, match="No inf checks"):
        other.step(optimizer)
    off = m.amp.GradScaler("cpu", enabled=False)
    rows += [off.state_dict(), off.get_scale(), off.scale(loss) is loss, off.step(optimizer)]
    return rows


def test_grad_scaler() -> None:
    assert scaler_history(offgrad) == scaler_history(torch)


def custom_function(m: Any, cast_inputs: Any) -> tuple[str, str, bool]:
    seen: list[Any] = []

    class Product(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        @m.amp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            seen.append(str((a @ b).dtype))
            return a @ b

        @staticmethod
        @m.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            seen.append(m.is_autocast_enabled("cpu"))
            return grad.to(b.dtype) @ b.mT, a.mT @ grad.to(a.dtype)

    a, b = tensors(m)
    with m.autocast("cpu"):
        result = Product.apply(a, b)
    result.float().sum().backward()
    return (str(result.dtype), *seen)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_functions_of_users(dtype: Any) -> None:
    results = [custom_function(m, dtype and getattr(m, dtype)) for m in (offgrad, torch)]
    assert results[0] == results[1]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_recomputes_under_the_autocast_of_its_forward(use_reentrant: bool) -> None:
    """Backward usually runs outside of `autocast`, or under another one."""
    layer: Any = offgrad.nn.Linear(4, 4)
    x: Any = offgrad.rand(3, 4, requires_grad=True)
    parameters = [x, layer.weight, layer.bias]

    def function(value: Any) -> Any:
        with offgrad.autocast("cpu", enabled=False):
            inner = layer(value)
        return layer(inner)

    def gradients(call: Callable[[Any], Any]) -> list[Any]:
        with offgrad.autocast("cpu", dtype=offgrad.bfloat16):
            loss = call(x).float().sum()
        with offgrad.autocast("cpu", dtype=offgrad.float16):
            loss.backward()
        found = [each.grad.tolist() for each in parameters]
        for each in parameters:
            each.grad = None
        return found

    expected = gradients(function)
    checkpoint = offgrad.utils.checkpoint.checkpoint
    assert gradients(lambda value: checkpoint(function, value, use_reentrant=use_reentrant)) == (
        expected
    )
