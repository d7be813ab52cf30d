"""Operations on tensors: a folder per family, a file per kind, each operation in one place.

Internal: users find the names in ``__all__``, which is that of all files, in `offgrad` itself.
"""

import typing as _typing

from offgrad.ops._core.autocast import *
from offgrad.ops._core.device import *
from offgrad.ops._core.dtype_functions import *
from offgrad.ops._core.dtypes import *
from offgrad.ops._core.inplace_forms import *
from offgrad.ops._creation.constants import *
from offgrad.ops._creation.from_data import *
from offgrad.ops._creation.ranges import *
from offgrad.ops._elementwise.arithmetic import *
from offgrad.ops._elementwise.bessel_functions import *
from offgrad.ops._elementwise.clamping import *
from offgrad.ops._elementwise.comparison import *
from offgrad.ops._elementwise.complex_numbers import *
from offgrad.ops._elementwise.exponential import *
from offgrad.ops._elementwise.gamma_functions import *
from offgrad.ops._elementwise.integers import *
from offgrad.ops._elementwise.power import *
from offgrad.ops._elementwise.rounding import *
from offgrad.ops._elementwise.special import *
from offgrad.ops._elementwise.ternary import *
from offgrad.ops._elementwise.trigonometry import *
from offgrad.ops._fft.spectrograms import *
from offgrad.ops._indexing.advanced import *
from offgrad.ops._indexing.along_dim import *
from offgrad.ops._indexing.combining import *
from offgrad.ops._indexing.counting import *
from offgrad.ops._indexing.masking import *
from offgrad.ops._indexing.quantiles import *
from offgrad.ops._indexing.reducing import *
from offgrad.ops._indexing.scattering import *
from offgrad.ops._indexing.searching import *
from offgrad.ops._indexing.segments import *
from offgrad.ops._indexing.sorting import *
from offgrad.ops._indexing.view_copies import *
from offgrad.ops._indexing.view_scatter import *
from offgrad.ops._linalg.affine import *
from offgrad.ops._linalg.contraction import *
from offgrad.ops._linalg.determinants import *
from offgrad.ops._linalg.einstein import *
from offgrad.ops._linalg.factorizations import *
from offgrad.ops._linalg.least_squares import *
from offgrad.ops._linalg.matrix_functions import *
from offgrad.ops._linalg.products import *
from offgrad.ops._linalg.samples import *
from offgrad.ops._linalg.solving import *
from offgrad.ops._linalg.spectral import *
from offgrad.ops._nn.activations import *
from offgrad.ops._nn.attention import *
from offgrad.ops._nn.average_pooling import *
from offgrad.ops._nn.batch_normalization import *
from offgrad.ops._nn.bilinear import *
from offgrad.ops._nn.channel_shuffling import *
from offgrad.ops._nn.classification_losses import *
from offgrad.ops._nn.convolution import *
from offgrad.ops._nn.ctc import *
from offgrad.ops._nn.distance_losses import *
from offgrad.ops._nn.dropout import *
from offgrad.ops._nn.elementwise_losses import *
from offgrad.ops._nn.embeddings import *
from offgrad.ops._nn.grid_sampling import *
from offgrad.ops._nn.group_normalization import *
from offgrad.ops._nn.max_pooling import *
from offgrad.ops._nn.multihead import *
from offgrad.ops._nn.multilabel_losses import *
from offgrad.ops._nn.normalization import *
from offgrad.ops._nn.padding import *
from offgrad.ops._nn.piecewise_activations import *
from offgrad.ops._nn.probabilities import *
from offgrad.ops._nn.recurrent_layers import *
from offgrad.ops._nn.rms_normalization import *
from offgrad.ops._nn.smooth_activations import *
from offgrad.ops._random.distributions import *
from offgrad.ops._random.dropout import *
from offgrad.ops._random.generators import *
from offgrad.ops._random.samples import *
from offgrad.ops._reduction.cumulative import *
from offgrad.ops._reduction.extrema import *
from offgrad.ops._reduction.norms import *
from offgrad.ops._reduction.statistics import *
from offgrad.ops._reduction.sums import *
from offgrad.ops._shape.diagonals import *
from offgrad.ops._shape.joining import *
from offgrad.ops._shape.permuting import *
from offgrad.ops._shape.reordering import *
from offgrad.ops._shape.reshaping import *
from offgrad.ops._shape.slicing import *
from offgrad.ops._shape.splitting import *
from offgrad.ops._shape.strided import *

if not _typing.TYPE_CHECKING:  # type checkers see the names of the star imports
    __all__ = sorted(name for name in vars() if not name.startswith("_"))
