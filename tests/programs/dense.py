"""Networks whose output is an image or a field."""

from typing import Any

from tests.programs.common import data, fit, program, seed_params, train


@program
def segnet(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class SegNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Conv2d(1, 4, 3, padding=2, dilation=2)
            self.bn = nn.BatchNorm2d(4)
            self.pool = nn.MaxPool2d(2, return_indices=True)
            self.unpool = nn.MaxUnpool2d(2, 2)
            self.decoder = nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect")

        def forward(self, x: Any) -> Any:
            h = F.relu(self.bn(self.encoder(x)))
            pooled, indices = self.pool(h)
            out = self.decoder(self.unpool(pooled, indices, output_size=h.size()))
            return F.interpolate(out, scale_factor=2, mode="bilinear", align_corners=False)

    y = torch.zeros(2, 16, 16, dtype=torch.long)
    y[:, 4:8] = 1
    y[0, 0, 0] = 255
    criterion = nn.CrossEntropyLoss(ignore_index=255, weight=torch.tensor([0.3, 0.7]))
    return fit(torch, SegNet(), data(torch, 2, 1, 8, 8), y, criterion)


@program
def style_transfer(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    conv = nn.Conv2d(3, 6, 3)
    seed_params(torch, conv)
    for parameter in conv.parameters():
        parameter.requires_grad_(False)

    def gram_matrix(x: Any) -> Any:
        a, b, c, d = x.size()
        features = x.view(a * b, c * d)
        return torch.mm(features, features.t()).div(a * b * c * d)

    target = gram_matrix(conv(data(torch, 1, 3, 8, 8))).detach()
    image = data(torch, 1, 3, 8, 8, seed=3).clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([image], max_iter=5)
    out = []

    def closure() -> Any:
        with torch.no_grad():
            image.clamp_(-2, 2)
        optimizer.zero_grad()
        loss = 1e3 * F.mse_loss(gram_matrix(conv(image)), target)
        loss.backward()
        out.append(loss.item())
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    return out[:6]


@program
def siren_of_a_poisson_equation(torch: Any) -> list[float]:
    nn = torch.nn

    class Sine(torch.nn.Module):
        def __init__(self, w0: float = 30.0) -> None:
            super().__init__()
            self.w0 = w0

        def forward(self, x: Any) -> Any:
            return torch.sin(self.w0 * x)

    def gradient(y: Any, x: Any) -> Any:
        ones = torch.ones_like(y)
        return torch.autograd.grad(y, [x], grad_outputs=ones, create_graph=True)[0]

    def laplace(y: Any, x: Any) -> Any:
        grad = gradient(y, x)
        divergence = 0.0
        for i in range(grad.shape[-1]):
            ones = torch.ones_like(grad[..., i])
            second = torch.autograd.grad(grad[..., i], x, ones, create_graph=True)[0]
            divergence = divergence + second[..., i : i + 1]
        return divergence

    net = nn.Sequential(nn.Linear(2, 16), Sine(3.0), nn.Linear(16, 16), Sine(1.0), nn.Linear(16, 1))
    seed_params(torch, net)
    axis = torch.linspace(-1, 1, 6)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    points = grid.reshape(-1, 2).requires_grad_(True)

    def loss_of() -> Any:
        y = net(points)
        residual = ((laplace(y, points) - 1) ** 2).mean()
        return residual + (gradient(y, points).norm(dim=-1) ** 2).mean()

    return train(torch.optim.Adam(lr=1e-3, params=net.parameters()), loss_of, steps=2)


@program
def super_resolution(torch: Any) -> list[float]:
    nn, init = torch.nn, torch.nn.init

    class Net(torch.nn.Module):
        def __init__(self, upscale_factor: int) -> None:
            super().__init__()
            self.relu = nn.ReLU()
            self.conv1 = nn.Conv2d(1, 8, (5, 5), (1, 1), (2, 2))
            self.conv2 = nn.Conv2d(8, 4, (3, 3), (1, 1), (1, 1))
            self.conv3 = nn.Conv2d(4, upscale_factor**2, (3, 3), (1, 1), (1, 1))
            self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
            init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
            init.orthogonal_(self.conv2.weight, init.calculate_gain("relu"))
            init.orthogonal_(self.conv3.weight)

        def forward(self, x: Any) -> Any:
            x = self.relu(self.conv1(x))
            x = self.relu(self.conv2(x))
            return self.pixel_shuffle(self.conv3(x))

    x, y = data(torch, 2, 1, 6, 6), data(torch, 2, 1, 12, 12, seed=2)
    return fit(torch, Net(2), x, y, nn.MSELoss())


@program
def pix2pix(torch: Any) -> list[float]:
    nn = torch.nn

    class UNet(torch.nn.Module):
        def __init__(self, inp: int, hidden: int, inner: Any, outermost: bool = False) -> None:
            super().__init__()
            self.outermost = outermost
            down = nn.Conv2d(inp, hidden, kernel_size=4, stride=2, padding=1, bias=False)
            width = hidden if inner is None else 2 * hidden
            up = nn.ConvTranspose2d(width, inp, kernel_size=4, stride=2, padding=1)
            if outermost:
                model = [down, inner, nn.ReLU(True), up, nn.Tanh()]
            elif inner is None:
                model = [nn.LeakyReLU(0.2, True), down, nn.ReLU(True), up, nn.BatchNorm2d(inp)]
            else:
                first = [nn.LeakyReLU(0.2, True), down, nn.BatchNorm2d(hidden)]
                last = [nn.ReLU(True), up, nn.BatchNorm2d(inp), nn.Dropout(0.0)]
                model = [*first, inner, *last]
            self.model = nn.Sequential(*model)

        def forward(self, x: Any) -> Any:
            return self.model(x) if self.outermost else torch.cat([x, self.model(x)], 1)

    generator = UNet(1, 4, UNet(4, 8, UNet(8, 8, None)), outermost=True)
    critic = nn.Sequential(
        nn.Conv2d(2, 4, 4, stride=2, padding=1), nn.LeakyReLU(0.2, True), nn.Conv2d(4, 1, 4)
    )
    seed_params(torch, generator)
    seed_params(torch, critic, seed=1)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    gan, l1 = nn.BCEWithLogitsLoss(), nn.L1Loss()
    a, b = data(torch, 2, 1, 16, 16), data(torch, 2, 1, 16, 16, seed=2)
    out = []

    def adversarial(images: Any, real: bool) -> Any:
        prediction = critic(torch.cat((a, images), 1))
        label = torch.tensor(1.0 if real else 0.0)
        return gan(prediction, label.expand_as(prediction))

    for _ in range(2):
        fake = generator(a)
        for parameter in critic.parameters():
            parameter.requires_grad = True
        optimizer_d.zero_grad()
        loss_d = (adversarial(fake.detach(), False) + adversarial(b, True)) * 0.5
        loss_d.backward()
        optimizer_d.step()
        for parameter in critic.parameters():
            parameter.requires_grad = False
        optimizer_g.zero_grad()
        loss_g = adversarial(fake, True) + l1(fake, b) * 100.0
        loss_g.backward()
        optimizer_g.step()
        out += [loss_d.item(), loss_g.item()]
    return out
