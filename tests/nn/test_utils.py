"""nn.utils: results and errors are torch's."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import kernels, nn
from offgrad.kernels._parallel import BLOCK
from offgrad.nn.utils import stateless
from tests.nn.programs import same_on_torch

SETUP = """
import copy
U = nn.utils
def params(scale=1.0, dtype=torch.float32):
    a = nn.Parameter(torch.zeros(2, 3, dtype=dtype))
    b = nn.Parameter(torch.zeros(2, dtype=dtype))
    a.grad = torch.arange(6, dtype=dtype).view(2, 3) * scale - 2
    b.grad = torch.tensor([3, -7], dtype=dtype) * scale
    return [a, b, nn.Parameter(torch.zeros(1))]
def clipped(f, *args, ps=None, **kwargs):
    ps = params() if ps is None else ps
    result = f(ps, *args, **kwargs)
    return result, [p.grad for p in ps]
x = torch.linspace(-1, 1, 6).view(2, 3)
lin = nn.Linear(3, 2)
lin.weight.data.copy_(x)
lin.bias.data.fill_(0.5)
class WithDevice(nn.Module):
    def __init__(self, size, device=None):
        super().__init__()
        self.size = size
def shapes(m):
    return [(k, tuple(v.shape)) for k, v in m.state_dict().items()]
def run(m, *args):
    m.zero_grad()
    m(torch.ones(1, 3)).sum().backward()
    return [(n, p.grad) for n, p in m.named_parameters()]
"""

PROGRAMS = {
    "clipping": """
clipped(U.clip_grad_norm_, 1.0)
clipped(U.clip_grad_norm_, 100)
clipped(U.clip_grad_norm_, 1.0, float("inf"))
clipped(U.clip_grad_norm_, 1.0, norm_type=1)
clipped(U.clip_grad_norm_, 1.0, norm_type=3.5, foreach=True)
clipped(U.clip_grad_norm_, 1.0, ps=params(dtype=torch.float64))
clipped(U.clip_grad_norm_, 1.0, ps=params(float("nan")), error_if_nonfinite=True)
clipped(U.clip_grad_norm_, 1.0, 1, True, ps=params(float("inf")))
clipped(U.clip_grad_norm_, 2.0, ps=params(dtype=torch.float16))
U.clip_grad_norm_(params()[0], 1.0)
U.clip_grad_norm_(iter(params()), 1.0)
U.clip_grad_norm_([], 1.0)
U.clip_grad_norm_((p for p in []), 1.0)
clipped(U.clip_grad_norm, 1.0)
clipped(U.clip_grad_value_, 2.5)
U.clip_grad_value_(params()[0], 1, foreach=False)
clipped(U.clip_grads_with_norm_, 1.0, torch.tensor(4.0))
U.get_total_norm([torch.ones(2), torch.ones(3, dtype=torch.float64)])
U.get_total_norm(torch.ones(4)), U.get_total_norm([]), U.get_total_norm([torch.ones(2)], 0.5)
""",
    "vectors": """
U.parameters_to_vector([x, torch.ones(2)])
U.vector_to_parameters(torch.arange(8.0), lin.parameters()), lin.weight.data, lin.bias.data
U.vector_to_parameters(3, lin.parameters())
""",
    "weight norm": """
shapes(U.weight_norm(copy.deepcopy(lin)))
run(U.weight_norm(copy.deepcopy(lin)))
run(U.weight_norm(copy.deepcopy(lin), dim=None))
run(U.weight_norm(copy.deepcopy(lin), dim=1))
U.weight_norm(U.weight_norm(copy.deepcopy(lin)))
shapes(U.remove_weight_norm(U.weight_norm(copy.deepcopy(lin))))
U.remove_weight_norm(copy.deepcopy(lin))
type(U.weight_norm(copy.deepcopy(lin)).weight) is torch.Tensor
shapes(U.parametrizations.weight_norm(copy.deepcopy(lin)))
run(U.parametrizations.weight_norm(copy.deepcopy(lin)))
run(U.parametrizations.weight_norm(copy.deepcopy(lin), dim=None))
""",
    "spectral norm": """
shapes(U.spectral_norm(copy.deepcopy(lin)))
dict(U.spectral_norm(copy.deepcopy(lin)).state_dict()._metadata)
dict(U.remove_spectral_norm(U.spectral_norm(copy.deepcopy(lin))).state_dict()._metadata)
shapes(U.remove_spectral_norm(U.spectral_norm(copy.deepcopy(lin))))
U.spectral_norm(U.spectral_norm(copy.deepcopy(lin)))
U.spectral_norm(copy.deepcopy(lin), n_power_iterations=0)
U.remove_spectral_norm(copy.deepcopy(lin))
shapes(U.parametrizations.spectral_norm(copy.deepcopy(lin)))
U.parametrizations.spectral_norm(copy.deepcopy(lin), dim=5)
U.parametrizations.spectral_norm(copy.deepcopy(lin), "nothing")
U.parametrizations.spectral_norm(copy.deepcopy(lin), "bias").bias
""",
    "other names": """
U.skip_init(WithDevice, 3, device="cpu").size
U.skip_init(3)
U.skip_init(torch.Tensor)
U.skip_init(nn.ReLU)
""",
    "functional_call": """
U.stateless.functional_call(lin, {"weight": x * 2}, x)
U.stateless.functional_call(lin, {"weight": x * 2, "bias": x[:, 0]}, (x,), {}, strict=True)
U.stateless.functional_call(lin, {"weight": x * 2}, (x,), strict=True)
U.stateless.functional_call(lin, {"weight": x * 2}, args=None, kwargs={"input": x})
lin.weight.data, isinstance(lin.weight, nn.Parameter)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_utils(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("sizes", [(3,), (0, 5, 1), (BLOCK + 7, 2 * BLOCK, 12)])
def test_kernels_of_gradients(sizes: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size).astype(dtype) for size in sizes]
    expected = sum(float((each.astype(np.float64) ** 2).sum()) for each in arrays)
    assert kernels.sum_of_squares([arrays]) == pytest.approx(expected, rel=1e-6)
    copies = [each.copy() for each in arrays]
    kernels.scale_all(copies, 0.5)
    for copy, each in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, each * each.dtype.type(0.5))


def test_clipping_of_complex_and_transposed_gradients() -> None:
    z = offgrad.zeros(2, dtype=offgrad.complex64, requires_grad=True)
    w = offgrad.zeros(2, 3, requires_grad=True)
    z.grad, w.grad = offgrad.tensor([3 + 4j, 0]), offgrad.ones(3, 2).T
    total = nn.utils.clip_grad_norm_([z, w], 1.0)
    assert total.item() == pytest.approx(31**0.5)
    assert abs(z.grad[0]).item() == pytest.approx(5 / 31**0.5, rel=1e-5)
    assert w.grad.tolist() == [[pytest.approx(31**-0.5, rel=1e-5)] * 3] * 2


def test_clipping_counts_as_a_change() -> None:
    w = offgrad.ones(2, requires_grad=True)
    (w * w).sum().backward(create_graph=True)
    assert w.grad is not None
    square = w.grad * w.grad
    nn.utils.clip_grad_norm_(w, 0.1)
    with pytest.raises(RuntimeError, match="in place"):
        square.sum().backward()


def test_normalised_weights_have_a_largest_singular_value_of_one() -> None:
    for norm in (nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm):
        layer = norm(nn.Linear(5, 4), n_power_iterations=50)
        for _ in range(3):
            out = layer(offgrad.ones(2, 5))
        out.sum().backward()
        singular = np.linalg.svd(layer.weight.detach().numpy(), compute_uv=False)
        assert singular[0] == pytest.approx(1, abs=1e-4)
        assert all(each.grad is not None for each in layer.parameters())


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("map_", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("trivialization", [True, False])
def test_orthogonal_against_torch(shape: Any, map_: str, trivialization: bool) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    grads, weights = [], []
    start = np.random.default_rng(0).standard_normal(shape[::-1]).astype(np.float32)
    slope = np.random.default_rng(1).standard_normal(shape[::-1]).astype(np.float32)
    state: dict[str, Any] = {}
    for lib in (torch, offgrad):
        layer = lib.nn.Linear(*shape)
        layer.weight.data.copy_(lib.from_numpy(start))
        lib.nn.utils.parametrizations.orthogonal(
            layer, orthogonal_map=map_, use_trivialization=trivialization
        )
        if lib is torch:
            state = layer.state_dict()
        assert list(layer.state_dict()) == list(state)
        layer.load_state_dict({k: lib.from_numpy(v.numpy()) for k, v in state.items()})
        (layer.weight * lib.from_numpy(slope)).sum().backward()
        weights.append(layer.weight.detach().numpy())
        grads.append(layer.parametrizations.weight.original.grad.numpy())
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-5)
    np.testing.assert_allclose(grads[1], grads[0], atol=1e-5)


def test_orthogonal_matrices_can_be_assigned() -> None:
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
    turned = offgrad.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    layer.weight = turned
    assert layer.weight.allclose(turned, atol=1e-6)
    plain = nn.utils.parametrizations.orthogonal(
        nn.Linear(3, 3), orthogonal_map="cayley", use_trivialization=False
    )
    with pytest.raises(NotImplementedError, match="use_trivialization"):
        plain.weight = turned


def test_functional_call_of_shared_parameters_and_buffers() -> None:
    class Tied(nn.Module):
        calls: offgrad.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.b = nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("calls", offgrad.zeros(()))

        def forward(self, x: offgrad.Tensor) -> offgrad.Tensor:
            self.calls = self.calls + 1
            return self.b(self.a(x))  # type: ignore[no-any-return]

    net, x = Tied(), offgrad.ones(1, 2)
    values = {"a.weight": offgrad.eye(2) * 2, "calls": offgrad.zeros(())}
    assert stateless.functional_call(net, values, x).tolist() == [[4, 4]]
    assert values["calls"].item() == 1
    assert net.calls.item() == 0
    assert net.a.weight is net.b.weight
    both = {"a.weight": offgrad.eye(2), "b.weight": offgrad.eye(2)}
    with pytest.raises(ValueError, match="tie_weights"):
        stateless.functional_call(net, both, x)
    assert stateless.functional_call(net, both, x, tie_weights=False).tolist() == [[1, 1]]
