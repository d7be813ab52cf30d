"""Numerical programs: solvers, transforms, state spaces, optimizers of one's own."""

import math
from typing import Any

from tests.programs.common import data, fit, program, seed_params, train


@program
def gaussian_process(torch: Any) -> list[float]:
    nn = torch.nn

    class Kernel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.length = nn.Parameter(torch.zeros((), dtype=torch.float64))
            self.scale = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, a: Any, b: Any) -> Any:
            distance = torch.cdist(a, b) / nn.functional.softplus(self.length)
            return self.scale.exp() * torch.exp(-0.5 * distance**2)

    kernel = Kernel()
    x = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    y = torch.sin(6 * x).squeeze()

    def factor() -> Any:
        return torch.linalg.cholesky(kernel(x, x) + 1e-2 * torch.eye(8, dtype=x.dtype))

    def loss_of() -> Any:
        lower = factor()
        alpha = torch.cholesky_solve(y[:, None], lower)
        return 0.5 * (y @ alpha.squeeze()) + lower.diagonal().log().sum()

    losses = train(torch.optim.Adam(kernel.parameters(), lr=0.1), loss_of)
    with torch.no_grad():
        new = torch.tensor([[0.5], [1.5]], dtype=x.dtype)
        v = torch.linalg.solve_triangular(factor(), kernel(x, new), upper=False)
        variance = (kernel(new, new) - v.T @ v).diag()
    return [*losses, *variance.tolist()]


@program
def burgers_equation_with_lbfgs(torch: Any) -> list[float]:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
    seed_params(torch, net.double())
    viscosity = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    x, t = (torch.linspace(a, 1, n, dtype=torch.float64) for a, n in ((-1, 6), (0, 5)))
    points = torch.hstack([x[:, None].repeat(5, 1), t.repeat_interleave(6)[:, None]])

    def residual() -> Any:
        at = points.clone().requires_grad_(True)
        u = net(at)
        first = torch.autograd.grad(u, at, torch.ones_like(u), create_graph=True)[0]
        second = torch.autograd.grad(first, at, torch.ones_like(first), create_graph=True)[0]
        return first[:, [1]] + u * first[:, [0]] - viscosity * second[:, [0]]

    losses = []
    optimizer = torch.optim.LBFGS(
        [*net.parameters(), viscosity],
        max_iter=12,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Any:
        optimizer.zero_grad()
        start = (net(points[:6]) + torch.sin(math.pi * points[:6, :1])).pow(2).mean()
        loss = residual().pow(2).mean() + start
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    return losses[:20]


@program
def fourier_neural_operator(torch: Any) -> list[float]:
    nn = torch.nn

    class SpectralConv(torch.nn.Module):
        def __init__(self, width: int, modes: int) -> None:
            super().__init__()
            self.modes = modes
            shape = (2, width, width, modes, modes)
            self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.cfloat))

        def forward(self, x: Any) -> Any:
            m, spectrum = self.modes, torch.fft.rfft2(x)
            out = torch.zeros_like(spectrum)
            rows = (slice(None, m), slice(-m, None))
            for row, weight in zip(rows, self.weight, strict=True):
                part = spectrum[:, :, row, :m]
                out[:, :, row, :m] = torch.einsum("bixy,ioxy->boxy", part, weight)
            return torch.fft.irfft2(out, s=x.shape[-2:])

    class Operator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.spectral = nn.Linear(3, 4), SpectralConv(4, 2)
            self.local, self.out = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 1, 1)

        def forward(self, x: Any) -> Any:
            axis = torch.linspace(0, 1, x.shape[1])
            grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
            x = torch.cat((x, grid.expand(len(x), -1, -1, -1)), dim=-1)
            x = self.lift(x).permute(0, 3, 1, 2)
            return self.out(nn.functional.gelu(self.spectral(x) + self.local(x)))

    model = Operator()
    seed_params(torch, model)
    with torch.no_grad():
        parts = data(torch, 2, 4, 4, 2, 2, 2, seed=3) * 0.2
        model.spectral.weight.copy_(torch.view_as_complex(parts))
    x, y = data(torch, 2, 6, 6, 1), data(torch, 2, 36, seed=2)

    def loss_of() -> Any:
        return (torch.norm(model(x).flatten(1) - y, 2, 1) / y.norm(dim=1)).mean()

    return train(torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4), loss_of)


@program
def selective_state_space(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class Mamba(torch.nn.Module):
        def __init__(self, width: int = 4, states: int = 3) -> None:
            super().__init__()
            inner = 2 * width
            self.inner, self.states = inner, states
            self.into = nn.Linear(width, 2 * inner, bias=False)
            self.conv = nn.Conv1d(inner, inner, 3, groups=inner, padding=2)
            self.project = nn.Linear(inner, 1 + 2 * states, bias=False)
            self.step = nn.Linear(1, inner)
            rates = torch.arange(1, states + 1, dtype=torch.float32).repeat(inner, 1)
            self.log_rates = nn.Parameter(torch.log(rates))
            self.skip = nn.Parameter(torch.ones(inner))
            self.out = nn.Linear(inner, width, bias=False)

        def scan(self, x: Any) -> Any:
            step, b, c = self.project(x).split([1, self.states, self.states], dim=-1)
            step, rates = F.softplus(self.step(step)), -torch.exp(self.log_rates)
            decay = torch.exp(torch.einsum("bld,dn->bldn", step, rates))
            driven = torch.einsum("bld,bln,bld->bldn", step, b, x)
            state, out = torch.zeros(len(x), self.inner, self.states), []
            for i in range(x.shape[1]):
                state = decay[:, i] * state + driven[:, i]
                out.append(torch.einsum("bdn,bn->bd", state, c[:, i]))
            return torch.stack(out, dim=1) + x * self.skip

        def forward(self, x: Any) -> Any:
            length = x.shape[1]
            x, gate = self.into(x).chunk(2, dim=-1)
            x = self.conv(x.mT)[:, :, :length].mT
            return self.out(self.scan(F.silu(x)) * F.silu(gate))

    model = Mamba()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = data(torch, 2, 6, 4), data(torch, 2, 6, 4, seed=2)
    return fit(torch, model, x, y, nn.MSELoss(), optimizer)


@program
def sharpness_aware_minimization(torch: Any) -> list[float]:
    class SAM(torch.optim.Optimizer):
        param_groups: list[Any]

        def __init__(self, params: Any, base: Any, rho: float = 0.05, **kwargs: Any) -> None:
            super().__init__(params, dict(rho=rho, **kwargs))
            self.base_optimizer = base(self.param_groups, **kwargs)
            self.param_groups = self.base_optimizer.param_groups
            self.defaults.update(self.base_optimizer.defaults)

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def first_step(self) -> None:
            every = [p for group in self.param_groups for p in group["params"]]
            norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in every]), p=2)
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * (group["rho"] / (norm + 1e-12)).to(p))
            self.zero_grad()

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def second_step(self) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = self.state[p]["old_p"]
            self.base_optimizer.step()
            self.zero_grad()

    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    seed_params(torch, model)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, 4)
    x, y, losses = data(torch, 6, 3), torch.tensor([0, 1, 0, 1, 1, 0]), []
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.second_step()
        schedule.step()
        losses += [loss.item(), optimizer.base_optimizer.param_groups[0]["lr"]]
    return losses
