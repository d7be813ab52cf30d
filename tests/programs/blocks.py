"""Networks of special layers, and losses over pairs."""

from typing import Any

import numpy as np

from tests.programs.common import data, fit, program, seed_params, train


@program
def inception(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class BasicConv2d(torch.nn.Module):
        def __init__(self, inp: int, out: int, **kwargs: Any) -> None:
            super().__init__()
            self.conv = nn.Conv2d(inp, out, bias=False, **kwargs)
            self.bn = nn.BatchNorm2d(out, eps=0.001)

        def forward(self, x: Any) -> Any:
            return F.relu(self.bn(self.conv(x)), inplace=True)

    class Inception(torch.nn.Module):
        def __init__(self, inp: int) -> None:
            super().__init__()
            self.branch1 = BasicConv2d(inp, 2, kernel_size=1)
            self.branch2 = nn.Sequential(
                BasicConv2d(inp, 3, kernel_size=1), BasicConv2d(3, 3, kernel_size=3, padding=1)
            )
            self.branch3 = nn.Sequential(
                BasicConv2d(inp, 2, kernel_size=(1, 7), padding=(0, 3)),
                BasicConv2d(2, 2, kernel_size=(7, 1), padding="same"),
            )
            self.branch4 = nn.Sequential(
                nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
                BasicConv2d(inp, 2, kernel_size=1),
            )

        def forward(self, x: Any) -> Any:
            pooled = F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
            branches = [self.branch1(x), self.branch2(x), self.branch3(pooled), self.branch4(x)]
            return torch.cat(branches, 1)

    net = nn.Sequential(
        BasicConv2d(1, 4, kernel_size=3, stride=2),
        nn.LocalResponseNorm(2),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        Inception(4),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(9, 3),
    )
    images = data(torch, 3, 1, 16, 16)
    return fit(torch, net, images, torch.tensor([0, 1, 2]), nn.CrossEntropyLoss())


@program
def siamese_with_contrastive_loss(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class SiameseNetwork(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cnn1 = nn.Sequential(
                nn.ReflectionPad2d(1), nn.Conv2d(1, 4, kernel_size=3), nn.PReLU(), nn.MaxPool2d(2)
            )
            self.fc1 = nn.Linear(4 * 4 * 4, 3)

        def forward_once(self, x: Any) -> Any:
            output = self.cnn1(x)
            return self.fc1(output.view(output.size()[0], -1))

        def forward(self, first: Any, second: Any) -> Any:
            return self.forward_once(first), self.forward_once(second)

    class ContrastiveLoss(torch.nn.Module):
        def __init__(self, margin: float = 2.0) -> None:
            super().__init__()
            self.margin = margin

        def forward(self, first: Any, second: Any, label: Any) -> Any:
            distance = F.pairwise_distance(first, second, keepdim=True)
            near = (1 - label) * torch.pow(distance, 2)
            far = label * torch.pow(torch.clamp(self.margin - distance, min=0.0), 2)
            return torch.mean(near + far)

    net, contrastive = SiameseNetwork(), ContrastiveLoss()
    seed_params(torch, net)
    first, second = data(torch, 4, 1, 8, 8), data(torch, 4, 1, 8, 8, seed=2)
    label = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    triplet = nn.TripletMarginLoss(margin=1.0, p=2)

    def loss_of() -> Any:
        a, b = net(first, second)
        return contrastive(a, b, label) + triplet(a, b, b.flip(0))

    return train(torch.optim.Adam(net.parameters(), lr=5e-4), loss_of)


@program
def matrix_factorization(torch: Any) -> list[float]:
    nn = torch.nn

    class MatrixFactorization(torch.nn.Module):
        def __init__(self, users: int, items: int, factors: int) -> None:
            super().__init__()
            self.user_factors = nn.Embedding(users, factors)
            self.item_factors = nn.Embedding(items, factors, max_norm=1.0)
            self.user_bias = nn.Embedding(users, 1)
            self.item_bias = nn.Embedding(items, 1)
            self.user_bias.weight.data.fill_(0.0)
            self.mean = nn.Parameter(torch.FloatTensor([3.0]), False)

        def forward(self, user: Any, item: Any) -> Any:
            dot = (self.user_factors(user) * self.item_factors(item)).sum(1)
            return dot + self.user_bias(user).squeeze() + self.item_bias(item).squeeze() + self.mean

    model = MatrixFactorization(5, 6, 3)
    seed_params(torch, model)
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    factors = [p for name, p in model.named_parameters() if "factors" in name]
    optimizer = torch.optim.SGD(
        [{"params": factors, "weight_decay": 1e-2}, {"params": biases, "lr": 0.01}], lr=0.1
    )
    user, item = torch.LongTensor([0, 1, 2, 3, 4, 0]), torch.LongTensor([5, 4, 3, 2, 1, 0])
    rating = torch.FloatTensor([1, 5, 3, 4, 2, 5])
    losses = train(optimizer, lambda: nn.MSELoss()(model(user, item), rating))
    return [*losses, len(optimizer.param_groups)]


@program
def mixup(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class SmoothCrossEntropy(torch.nn.Module):
        def __init__(self, smoothing: float = 0.1) -> None:
            super().__init__()
            self.smoothing = smoothing

        def forward(self, logits: Any, target: Any) -> Any:
            log_probs = F.log_softmax(logits, dim=-1)
            nll = -log_probs.gather(dim=-1, index=target.unsqueeze(1)).squeeze(1)
            smooth = -log_probs.mean(dim=-1)
            return ((1.0 - self.smoothing) * nll + self.smoothing * smooth).mean()

    net = nn.Sequential(nn.Linear(4, 8), nn.Mish(), nn.Linear(8, 3))
    seed_params(torch, net)
    x, y = data(torch, 6, 4), torch.arange(6) % 3
    order, lam = torch.tensor([3, 1, 5, 0, 2, 4]), np.float64(0.3)
    smooth = SmoothCrossEntropy()

    def loss_of() -> Any:
        output = net(lam * x + (1 - lam) * x[order, :])
        hard = lam * smooth(output, y) + (1 - lam) * smooth(output, y[order])
        one_hot = F.one_hot(y, num_classes=3).float()
        soft = lam * one_hot + (1 - lam) * one_hot[order]
        divergence = nn.KLDivLoss(reduction="batchmean")(F.log_softmax(output, dim=1), soft)
        return hard + F.cross_entropy(output, soft) + divergence

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)
    out = []
    for _ in range(3):
        out += train(optimizer, loss_of, steps=1)
        scheduler.step()
        out += scheduler.get_last_lr()
    return out


@program
def spectral_norm_critic(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    critic = nn.Sequential(
        nn.utils.spectral_norm(nn.Conv2d(1, 4, 3, stride=2), n_power_iterations=30),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.utils.weight_norm(nn.Linear(36, 1)),
    )
    seed_params(torch, critic)
    real, fake = data(torch, 3, 1, 8, 8), data(torch, 3, 1, 8, 8, seed=2)
    optimizer = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
    losses = train(
        optimizer, lambda: F.relu(1.0 - critic(real)).mean() + F.relu(1.0 + critic(fake)).mean()
    )
    nn.utils.remove_weight_norm(critic[-1])
    critic.eval()
    with torch.no_grad():
        return [*losses, critic(real).mean().item(), len(critic.state_dict())]


@program
def bayes_by_backprop(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    noise = data(torch, 3, 4, seed=7)

    class BayesianLinear(torch.nn.Module):
        __constants__ = ["in_features", "out_features"]

        def __init__(self, in_features: int, out_features: int) -> None:
            super().__init__()
            self.in_features, self.out_features = in_features, out_features
            self.mu = nn.Parameter(torch.empty((out_features, in_features)))
            self.rho = nn.Parameter(torch.full((out_features, in_features), -3.0))
            nn.init.kaiming_uniform_(self.mu, a=5**0.5)

        def forward(self, x: Any) -> Any:
            sigma = torch.log1p(torch.exp(self.rho))
            self.posterior = torch.distributions.Normal(self.mu, sigma)
            return F.linear(x, self.mu + sigma * noise)

        def extra_repr(self) -> str:
            return f"in_features={self.in_features}, out_features={self.out_features}"

    layer = BayesianLinear(4, 3)
    seed_params(torch, layer)
    prior = torch.distributions.Normal(torch.zeros(3, 4), torch.ones(3, 4))
    x, y = data(torch, 5, 4), data(torch, 5, 3, seed=2)

    def loss_of() -> Any:
        fit_loss = F.gaussian_nll_loss(layer(x), y, torch.ones(5, 3), reduction="sum")
        return fit_loss + torch.distributions.kl_divergence(layer.posterior, prior).sum()

    assert repr(layer) == "BayesianLinear(in_features=4, out_features=3)"
    return train(torch.optim.Adam([layer.mu, layer.rho], lr=1e-2), loss_of)
