"""Networks whose attention and embeddings are a graph's."""

from .denoiser import Denoiser as Denoiser
from .tokens import Frame as Frame
