"""Training loops: data loaders, checkpoints, mixed precision, groups of parameters."""

import copy
import os
import tempfile
from typing import Any

import numpy as np

from tests.programs.common import data, fit, program, seed_params


@program
def data_set(torch: Any) -> list[float]:
    nn = torch.nn

    class Points(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.x = np.arange(20, dtype=np.float32).reshape(10, 2) / 10

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": torch.from_numpy(self.x[i]), "y": int(i % 2)}

    generator = torch.Generator().manual_seed(0)
    train, valid = torch.utils.data.random_split(Points(), [0.8, 0.2], generator=generator)
    loader = torch.utils.data.DataLoader(train, batch_size=3, shuffle=True, drop_last=False)
    model = nn.Linear(2, 2)
    seed_params(torch, model)
    optimizer = torch.optim.Rprop(model.parameters())
    total = 0.0
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(Points(), batch_size=4):
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * batch["x"].size(0)
    return [len(train), len(valid), len(loader), total / 20]


@program
def checkpoint_file(torch: Any) -> list[float]:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    seed_params(torch, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = data(torch, 5, 3), torch.tensor([0, 1, 0, 1, 1])

    def step() -> float:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    out = [step()]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "checkpoint.pt")
        states = {
            "epoch": 1,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "loss": torch.tensor(out[0]),
        }
        torch.save(states, path)
        out += [step(), step()]
        checkpoint = torch.load(path, map_location=torch.device("cpu"), weights_only=True)
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    assert checkpoint["loss"].item() == out[0]
    assert [step(), step()] == out[1:]
    return out


@program
def mixed_precision_switched_off(torch: Any) -> list[float]:
    nn = torch.nn
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(3, 2).to(device)
    seed_params(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    out = []
    for _ in range(2):
        with torch.autocast(device_type=device.type, dtype=torch.bfloat16, enabled=False):
            x = data(torch, 4, 3).to(device, non_blocking=True)
            loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        out.append(loss.item())
    return [*out, sum(p.numel() for p in model.parameters() if p.requires_grad)]


@program
def early_stopping(torch: Any) -> list[float]:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    seed_params(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    x, y = data(torch, 8, 3), data(torch, 8, 1, seed=2)
    best, best_state, waited, out = float("inf"), None, 0, []
    for _ in range(6):
        model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[:6]), y[:6]).backward()
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            valid = nn.functional.mse_loss(model(x[6:]), y[6:]).item()
        scheduler.step(valid)
        out += [valid, optimizer.param_groups[0]["lr"]]
        if valid < best:
            best, best_state, waited = valid, copy.deepcopy(model.state_dict()), 0
        else:
            waited += 1
            if waited == 3:
                break
    model.load_state_dict(best_state)
    with torch.no_grad():
        assert nn.functional.mse_loss(model(x[6:]), y[6:]).item() == best
    return [*out, best]


@program
def accumulated_gradients_of_groups(torch: Any) -> list[float]:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2))
    seed_params(torch, model)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    x, y = data(torch, 8, 3), torch.arange(8) % 2
    out = []
    for _ in range(4):
        for inputs, targets in zip(x.split(2), y.split(2), strict=True):
            loss = nn.functional.cross_entropy(model(inputs), targets) / 4
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        warmup.step()
        averaged.update_parameters(model)
        optimizer.zero_grad(set_to_none=True)
        out += [loss.item(), norm.item(), *warmup.get_last_lr()]
    with torch.no_grad():
        out.append(averaged(x).square().mean().item())
    return out


@program
def straight_through_estimator(torch: Any) -> list[float]:
    nn = torch.nn

    class Binarize(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> Any:
            (x,) = ctx.saved_tensors
            grad_input = grad_output.clone()
            grad_input[x.abs() > 1] = 0
            return grad_input

    class Sign(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Binarize.apply(x)

    net = nn.Sequential(nn.Linear(4, 8), Sign(), nn.Linear(8, 3))
    criterion = nn.CrossEntropyLoss(reduction="sum")
    return fit(torch, net, data(torch, 5, 4), torch.arange(5) % 3, criterion)


@program
def hooks_for_features(torch: Any) -> list[float]:
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    seed_params(torch, net)
    activations: dict[str, Any] = {}
    gradients: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            activations[name] = output.detach()
            output.register_hook(lambda grad: gradients.__setitem__(name, grad))

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in net.named_children()]
    scores = net(data(torch, 2, 1, 6, 6))
    scores[:, 0].sum().backward()
    for handle in handles:
        handle.remove()
    weights = gradients["1"].mean(dim=(2, 3), keepdim=True)
    grad_cam = torch.relu((weights * activations["1"]).sum(1))
    return [*grad_cam.flatten().tolist(), *(a.mean().item() for a in activations.values())]


@program
def reparametrized_layers(torch: Any) -> list[float]:
    nn = torch.nn

    class Symmetric(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

    square = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(square, "weight", Symmetric())
    scaled = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), name="weight")
    net = nn.Sequential(square, nn.Tanh(), scaled, nn.Tanh(), nn.Linear(4, 2))
    out = fit(torch, net, data(torch, 5, 4), data(torch, 5, 2, seed=2), nn.MSELoss())
    assert torch.equal(square.weight, square.weight.T)
    nn.utils.parametrize.remove_parametrizations(scaled, "weight")
    return [*out, scaled.weight.square().sum().item()]
