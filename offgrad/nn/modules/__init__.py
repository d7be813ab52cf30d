"""Module and the layers, each in the file where PyTorch has it. Internal: use `offgrad.nn`."""

from offgrad.nn.modules.activation import GELU, ReLU, Sigmoid, SiLU, Softmax, Tanh
from offgrad.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm
from offgrad.nn.modules.container import ModuleDict, ModuleList, Sequential
from offgrad.nn.modules.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
from offgrad.nn.modules.container import (
    Container,
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from offgrad.nn.modules.dropout import Dropout
from offgrad.nn.modules.fold import Fold, Unfold
from offgrad.nn.modules.instancenorm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from offgrad.nn.modules.linear import Identity, Linear
from offgrad.nn.modules.loss import CrossEntropyLoss, MSELoss
from offgrad.nn.modules.module import Module
from offgrad.nn.modules.normalization import (
    CrossMapLRN2d,
    GroupNorm,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from offgrad.nn.modules.sparse import Embedding

__all__ = [
    "GELU",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Container",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Fold",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "ParameterDict",
    "ParameterList",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "Unfold",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "SyncBatchNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "CrossMapLRN2d",
    "GroupNorm",
    "LocalResponseNorm",
    "RMSNorm",
]
