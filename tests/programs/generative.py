"""Adversarial, diffusion, flow and vector-quantised models."""

import math
from typing import Any

from tests.programs.common import data, program, seed_params, train


@program
def wgan_with_gradient_penalty(torch: Any) -> list[float]:
    nn = torch.nn
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 8, 4, 2, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 1, 2),
    )
    seed_params(torch, critic)
    real, fake = data(torch, 3, 1, 8, 8), data(torch, 3, 1, 8, 8, seed=2)
    eps = torch.tensor([[[[0.3]]], [[[0.6]]], [[[0.9]]]])

    def loss_of() -> Any:
        mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
        score = critic(mixed).view(-1)
        gradients = torch.autograd.grad(
            outputs=score,
            inputs=mixed,
            grad_outputs=torch.ones_like(score),
            create_graph=True,
            retain_graph=True,
            only_inputs=True,
        )[0]
        gradients = gradients.view(gradients.size(0), -1)
        penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return train(torch.optim.RMSprop(critic.parameters(), lr=1e-3), loss_of)


@program
def diffusion_with_ema(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class SinusoidalEmbedding(torch.nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.dim = dim

        def forward(self, time: Any) -> Any:
            half = self.dim // 2
            scale = math.log(10000) / (half - 1)
            embeddings = torch.exp(torch.arange(half, device=time.device) * -scale)
            embeddings = time[:, None] * embeddings[None, :]
            return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)

    class UNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(SinusoidalEmbedding(8), nn.Linear(8, 8), nn.SiLU())
            self.inp = nn.Conv2d(1, 8, 3, padding=1)
            self.norm = nn.GroupNorm(2, 8)
            self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.up = nn.Upsample(scale_factor=2, mode="nearest")
            self.out = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x: Any, t: Any) -> Any:
            h = F.silu(self.norm(self.inp(x))) + self.time(t)[:, :, None, None]
            d = F.silu(self.down(h))
            return self.out(torch.cat([self.up(d), h], dim=1))

    def extract(a: Any, t: Any, shape: tuple[int, ...]) -> Any:
        return a.gather(-1, t).reshape(t.shape[0], *((1,) * (len(shape) - 1)))

    betas = torch.linspace(1e-4, 0.02, 20)
    alphas_cumprod = torch.cumprod(1.0 - betas, 0)
    previous = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
    model = UNet()
    seed_params(torch, model)
    ema = {k: v.clone() for k, v in model.state_dict().items()}
    x0, noise = data(torch, 4, 1, 8, 8), data(torch, 4, 1, 8, 8, seed=5)
    t = torch.tensor([0, 5, 10, 19]).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    out = []
    for _ in range(3):
        kept = extract(alphas_cumprod.sqrt(), t, x0.shape)
        added = extract((1 - alphas_cumprod).sqrt(), t, x0.shape)
        loss = F.smooth_l1_loss(noise, model(kept * x0 + added * noise, t))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
        with torch.no_grad():
            for k, v in model.state_dict().items():
                ema[k].mul_(0.9).add_(v, alpha=0.1)
    model.load_state_dict(ema)
    with torch.no_grad():
        out.append(model(x0, t).square().mean().item())
    return [*out, float(previous.sum())]


@program
def realnvp(torch: Any) -> list[float]:
    nn = torch.nn

    class Coupling(torch.nn.Module):
        def __init__(self, mask: Any) -> None:
            super().__init__()
            self.register_buffer("mask", mask)
            self.net = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 4))

        def forward(self, x: Any) -> Any:
            masked = x * self.mask
            scale, shift = self.net(masked).chunk(2, dim=1)
            scale = torch.tanh(scale) * (1 - self.mask)
            shift = shift * (1 - self.mask)
            return masked + (1 - self.mask) * (x * torch.exp(scale) + shift), scale.sum(-1)

    masks = [torch.tensor([i % 2, 1 - i % 2]).float() for i in range(4)]
    layers = nn.ModuleList([Coupling(mask) for mask in masks])
    seed_params(torch, layers)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    x = data(torch, 16, 2)

    def loss_of() -> Any:
        z, log_det = x, 0
        for layer in reversed(layers):
            z, change = layer(z)
            log_det = log_det + change
        return -(prior.log_prob(z) + log_det).mean()

    return train(torch.optim.Adam(layers.parameters(), lr=1e-3), loss_of)


@program
def vq_vae(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    encoder = nn.Conv2d(1, 4, 4, 2, 1)
    decoder = nn.ConvTranspose2d(4, 1, 4, 2, 1)
    codebook = nn.Embedding(6, 4)
    model = nn.ModuleList([encoder, decoder, codebook])
    seed_params(torch, model)
    codebook.weight.data.mul_(2)
    x = data(torch, 2, 1, 8, 8)
    perplexities = []

    def loss_of() -> Any:
        inputs = encoder(x).permute(0, 2, 3, 1).contiguous()
        flat = inputs.view(-1, 4)
        distances = (
            flat.pow(2).sum(1, keepdim=True)
            + codebook.weight.pow(2).sum(1)
            - 2 * torch.matmul(flat, codebook.weight.t())
        )
        indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(indices.shape[0], 6).scatter_(1, indices, 1)
        quantized = torch.matmul(encodings, codebook.weight).view(inputs.shape)
        commitment = F.mse_loss(quantized.detach(), inputs)
        loss = F.mse_loss(quantized, inputs.detach()) + 0.25 * commitment
        quantized = inputs + (quantized - inputs).detach()
        used = encodings.mean(0)
        perplexities.append(torch.exp(-torch.sum(used * torch.log(used + 1e-10))).item())
        reconstruction = decoder(quantized.permute(0, 3, 1, 2).contiguous())
        return F.mse_loss(reconstruction, x) + loss

    losses = train(torch.optim.Adamax(model.parameters(), lr=1e-2), loss_of)
    return losses + perplexities
