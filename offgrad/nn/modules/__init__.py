"""Module and the layers, each in the file where PyTorch has it. Internal: use `offgrad.nn`."""

import typing as _typing

from offgrad.nn.modules.activation import *
from offgrad.nn.modules.adaptive import *
from offgrad.nn.modules.attention import *
from offgrad.nn.modules.batchnorm import *
from offgrad.nn.modules.channelshuffle import *
from offgrad.nn.modules.container import *
from offgrad.nn.modules.conv import *
from offgrad.nn.modules.distance import *
from offgrad.nn.modules.dropout import *
from offgrad.nn.modules.flatten import *
from offgrad.nn.modules.fold import *
from offgrad.nn.modules.instancenorm import *
from offgrad.nn.modules.lazy_layers import *
from offgrad.nn.modules.linear import *
from offgrad.nn.modules.loss import *
from offgrad.nn.modules.module import *
from offgrad.nn.modules.normalization import *
from offgrad.nn.modules.padding import *
from offgrad.nn.modules.pixelshuffle import *
from offgrad.nn.modules.pooling import *
from offgrad.nn.modules.rnn import *
from offgrad.nn.modules.sparse import *
from offgrad.nn.modules.transformer import *
from offgrad.nn.modules.upsampling import *

if not _typing.TYPE_CHECKING:  # type checkers see the names of the star imports
    __all__ = sorted(name for name, value in vars().items() if isinstance(value, type))
