"""Classifiers of images."""

from collections import OrderedDict
from typing import Any

from tests.programs.common import data, fit, program, seed_params


@program
def mobilenet_v2(torch: Any) -> list[float]:
    nn = torch.nn

    class ConvBNReLU(torch.nn.Sequential):
        def __init__(
            self, inp: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1
        ) -> None:
            padding = (kernel - 1) // 2
            super().__init__(
                nn.Conv2d(inp, out, kernel, stride, padding, groups=groups, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU6(inplace=True),
            )

    class InvertedResidual(torch.nn.Module):
        def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
            super().__init__()
            self.stride = stride
            hidden = round(inp * expand_ratio)
            self.use_res = self.stride == 1 and inp == oup
            layers = []
            if expand_ratio != 1:
                layers.append(ConvBNReLU(inp, hidden, kernel=1))
            layers.extend(
                [
                    ConvBNReLU(hidden, hidden, stride=stride, groups=hidden),
                    nn.Conv2d(hidden, oup, 1, 1, 0, bias=False),
                    nn.BatchNorm2d(oup),
                ]
            )
            self.conv = nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return x + self.conv(x) if self.use_res else self.conv(x)

    class MobileNetV2(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            channels = 8
            features = [ConvBNReLU(3, channels, stride=2)]
            for ratio, out, repeats, stride in [[1, 8, 1, 1], [6, 12, 2, 2], [6, 16, 1, 2]]:
                for i in range(repeats):
                    step = stride if i == 0 else 1
                    features.append(InvertedResidual(channels, out, step, expand_ratio=ratio))
                    channels = out
            self.features = nn.Sequential(*features)
            self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(channels, 5))
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight, mode="fan_out")
                    if m.bias is not None:
                        nn.init.zeros_(m.bias)
                elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                    nn.init.ones_(m.weight)
                    nn.init.zeros_(m.bias)
                elif isinstance(m, nn.Linear):
                    nn.init.normal_(m.weight, 0, 0.01)
                    nn.init.zeros_(m.bias)

        def forward(self, x: Any) -> Any:
            x = self.features(x)
            x = nn.functional.adaptive_avg_pool2d(x, (1, 1))
            return self.classifier(torch.flatten(x, 1))

    images = data(torch, 4, 3, 32, 32)
    return fit(torch, MobileNetV2(), images, torch.arange(4) % 5, nn.CrossEntropyLoss())


@program
def densenet(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class DenseLayer(torch.nn.Module):
        def __init__(self, inp: int, growth: int, bn_size: int, drop_rate: float) -> None:
            super().__init__()
            self.add_module("norm1", nn.BatchNorm2d(inp))
            self.add_module("relu1", nn.ReLU(inplace=True))
            self.add_module(
                "conv1", nn.Conv2d(inp, bn_size * growth, kernel_size=1, stride=1, bias=False)
            )
            self.norm2 = nn.BatchNorm2d(bn_size * growth)
            self.relu2 = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(
                bn_size * growth, growth, kernel_size=3, stride=1, padding=1, bias=False
            )
            self.drop_rate = drop_rate

        def forward(self, input: Any) -> Any:
            previous = [input] if isinstance(input, torch.Tensor) else input
            out = self.conv1(self.relu1(self.norm1(torch.cat(previous, 1))))
            out = self.conv2(self.relu2(self.norm2(out)))
            if self.drop_rate > 0:
                out = F.dropout(out, p=self.drop_rate, training=self.training)
            return out

    class DenseBlock(torch.nn.ModuleDict):
        def __init__(self, layers: int, inp: int, bn_size: int, growth: int) -> None:
            super().__init__()
            for i in range(layers):
                layer = DenseLayer(inp + i * growth, growth, bn_size, 0.0)
                self.add_module("denselayer%d" % (i + 1), layer)  # noqa: UP031

        def forward(self, x: Any) -> Any:
            features = [x]
            for _, layer in self.items():
                features.append(layer(features))
            return torch.cat(features, 1)

    class DenseNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            stem = [
                ("conv0", nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)),
                ("norm0", nn.BatchNorm2d(8)),
                ("relu0", nn.ReLU(inplace=True)),
                ("pool0", nn.MaxPool2d(kernel_size=3, stride=2, padding=1)),
            ]
            self.features = nn.Sequential(OrderedDict(stem))
            self.features.add_module("block1", DenseBlock(2, 8, 2, 4))
            transition = nn.Sequential(
                nn.BatchNorm2d(16), nn.ReLU(True), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2, 2)
            )
            self.features.add_module("transition1", transition)
            self.classifier = nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            features = F.relu(self.features(x), inplace=True)
            out = F.adaptive_avg_pool2d(features, (1, 1))
            return self.classifier(torch.flatten(out, 1))

    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    return fit(torch, DenseNet(), data(torch, 2, 3, 32, 32), torch.tensor([1, 3]), criterion)


@program
def convnext_with_squeeze_excitation(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class LayerNorm2d(torch.nn.LayerNorm):
        def forward(self, x: Any) -> Any:
            x = x.permute(0, 2, 3, 1)
            x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
            return x.permute(0, 3, 1, 2)

    class SqueezeExcitation(torch.nn.Module):
        def __init__(self, channels: int, ratio: int = 4) -> None:
            super().__init__()
            self.fc = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(channels, channels // ratio, 1),
                nn.Hardswish(),
                nn.Conv2d(channels // ratio, channels, 1),
                nn.Hardsigmoid(),
            )

        def forward(self, x: Any) -> Any:
            return x * self.fc(x)

    class Block(torch.nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
            self.norm = nn.LayerNorm(dim, eps=1e-6)
            self.pwconv1 = nn.Linear(dim, 4 * dim)
            self.act = nn.GELU()
            self.pwconv2 = nn.Linear(4 * dim, dim)
            self.gamma = nn.Parameter(1e-1 * torch.ones(dim), requires_grad=True)
            self.se = SqueezeExcitation(dim)

        def forward(self, x: Any) -> Any:
            shortcut = x
            x = self.dwconv(x).permute(0, 2, 3, 1)
            x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
            x = (self.gamma * x).permute(0, 3, 1, 2)
            return shortcut + self.se(x)

    net = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4),
        LayerNorm2d(8),
        Block(8),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    images = data(torch, 2, 3, 32, 32)
    net(images)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95))
    return fit(torch, net, images, torch.tensor([1, 3]), nn.CrossEntropyLoss(), optimizer)


@program
def vgg_with_schedule(torch: Any) -> list[float]:
    nn = torch.nn

    def make_layers(config: list[Any]) -> Any:
        layers: list[Any] = []
        channels = 3
        for v in config:
            if v == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
            else:
                layers += [nn.Conv2d(channels, v, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
                channels = v
        return nn.Sequential(*layers)

    net = nn.Sequential(
        make_layers([4, "M", 8, 8, "M"]),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 16),
        nn.ReLU(True),
        nn.Dropout(p=0.0),
        nn.Linear(16, 5),
    )
    seed_params(torch, net)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    x, y = data(torch, 4, 3, 32, 32), torch.arange(4)
    out = []
    for _ in range(4):
        loss = nn.functional.nll_loss(torch.log_softmax(net(x), dim=1), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        out += [loss.item(), optimizer.param_groups[0]["lr"], scheduler.get_last_lr()[0]]
    net.eval()
    with torch.no_grad():
        prediction = net(x).max(1)[1]
        out.append(prediction.eq(y.view_as(prediction)).sum().item())
    return out


@program
def spatial_transformer(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.localization = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, stride=2), nn.ReLU(True)
            )
            self.fc_loc = nn.Linear(4 * 3 * 3, 6)
            self.fc = nn.Linear(64, 3)
            identity = torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float)
            self.fc_loc.weight.data.zero_()
            self.fc_loc.bias.data.copy_(identity)

        def forward(self, x: Any) -> Any:
            theta = self.fc_loc(self.localization(x).view(-1, 4 * 3 * 3)).view(-1, 2, 3)
            grid = F.affine_grid(theta, x.size(), align_corners=False)
            return self.fc(F.grid_sample(x, grid, align_corners=False).flatten(1))

    images = data(torch, 2, 1, 8, 8)
    return fit(torch, Net(), images, torch.tensor([0, 2]), nn.CrossEntropyLoss())
