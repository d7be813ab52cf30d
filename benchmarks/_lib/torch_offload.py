"""Training steps of PyTorch, alone and with the libraries that offload what it keeps in memory.

Each function makes a GPT and returns a function that trains one step and returns the loss.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks._lib.translated import import_for
from benchmarks._lib.variants import checkpoint_blocks

Step = Callable[[Any, Any], float]

_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29511",
}
"""The environment of a process of a distributed run, of which it is the only one."""

_BUCKET = 1 << 22
"""Elements that DeepSpeed handles at once. Its defaults reserve gigabytes."""


def plain(
    sizes: list[int], folder: str, checkpoint: bool = False, in_backward: bool = False
) -> Step:
    """Return steps of PyTorch alone, with its fused AdamW.

    Args:
        sizes: layers, width, heads and context.
        folder: unused.
        checkpoint: whether each block is a checkpoint.
        in_backward: whether backward updates each parameter and drops its gradient.
    """
    model = _made(sizes, checkpoint)
    make = partial(torch.optim.AdamW, lr=3e-4, fused=True)
    if not in_backward:
        return _usual(model, make(model.parameters()))
    optimizers = {each: make([each]) for each in model.parameters()}

    def update(param: Any) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(update)

    def step(tokens: Any, targets: Any) -> float:
        loss = model.loss(tokens, targets)
        loss.backward()
        return float(loss.item())

    return step


def accelerated(sizes: list[int], folder: str) -> Step:
    """Return steps with Accelerate, which keeps parameters in files and loads them by module."""
    accelerate = import_module("accelerate")
    model = accelerate.disk_offload(_made(sizes, False), folder, execution_device="cpu")
    return _usual(model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True))


def deepspeed(sizes: list[int], folder: str, device: str) -> Step:
    """Return steps with DeepSpeed's ZeRO stage 3 in one process, on its CPU accelerator.

    Args:
        sizes: layers, width, heads and context.
        folder: where it writes.
        device: where parameters, gradients and optimizer state are, ``"cpu"`` or ``"nvme"``.
    """
    for name, value in _ALONE.items():
        os.environ.setdefault(name, value)
    ds = import_module("deepspeed")
    ds.init_distributed("gloo")
    place = {"device": device} | ({"nvme_path": folder} if device == "nvme" else {})
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": place | ({"buffer_size": _BUCKET} if device == "nvme" else {}),
            "offload_optimizer": place,
            "sub_group_size": _BUCKET,
            "reduce_bucket_size": _BUCKET,
            "stage3_prefetch_bucket_size": _BUCKET,
            "stage3_max_live_parameters": _BUCKET,
            "stage3_max_reuse_distance": 0,
        },
    }
    with ds.zero.Init(config_dict_or_path=settings, remote_device=device):
        model = _made(sizes, True)
    engine, *_ = ds.initialize(model=model, config=settings)

    def step(tokens: Any, targets: Any) -> float:
        logits = engine(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        engine.backward(loss)
        engine.step()
        return float(loss.item())

    return step


def _made(sizes: list[int], checkpoint: bool) -> Any:
    gpt = import_for(torch, "offgrad.cli.compare.gpt")
    model = gpt.GPT(gpt.GPTConfig(*sizes))
    if checkpoint:
        checkpoint_blocks(torch, model)
    return model


def _usual(model: Any, optimizer: Any) -> Step:
    """Return steps with the optimizer after backward."""

    def step(tokens: Any, targets: Any) -> float:
        loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step
