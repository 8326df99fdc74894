"""unn: declare a factor graph once, infer any variables given any others."""

from . import regularizers as regularizers
from .attention.mask import AttentionMask as AttentionMask
from .boundedness import Bound as Bound
from .boundedness import Boundedness as Boundedness
from .diffusion.diffusion import Diffusion as Diffusion
from .engine.infer import infer as infer
from .engine.observe import Partial as Partial
from .engine.orders import Block as Block
from .engine.orders import ForwardBackward as ForwardBackward
from .engine.orders import Order as Order
from .engine.orders import RandomOrder as RandomOrder
from .engine.solution import Solution as Solution
from .engine.solution import Status as Status
from .engine.unrolled import Unrolled as Unrolled
from .errors import DataError as DataError
from .errors import DeclarationError as DeclarationError
from .errors import DivergenceError as DivergenceError
from .errors import InferenceError as InferenceError
from .errors import ObservationError as ObservationError
from .errors import UnnError as UnnError
from .factor import Factor as Factor
from .graph import FactorGraph as FactorGraph
from .models.denoiser import Denoiser as Denoiser
from .rays import Ray as Ray
from .regularizers import L1 as L1
from .regularizers import Ball as Ball
from .regularizers import BinaryEntropy as BinaryEntropy
from .regularizers import Box as Box
from .regularizers import Entropy as Entropy
from .regularizers import NonNegative as NonNegative
from .regularizers import Regularizer as Regularizer
from .regularizers import SignedEntropy as SignedEntropy
from .regularizers import SimplexNorm as SimplexNorm
from .regularizers import SquaredNorm as SquaredNorm
from .regularizers import TsallisEntropy as TsallisEntropy
from .sizes import SizeRule as SizeRule
from .tracing import trace as trace

__version__: str
