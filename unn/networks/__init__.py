"""Networks over graphs: token layouts, embeddings, transformer blocks and the denoiser."""

from .blocks import TransformerBlock as TransformerBlock
from .denoiser import Denoiser as Denoiser
from .embeddings import ArrayEmbedding as ArrayEmbedding
from .embeddings import node_positions as node_positions
from .embeddings import sinusoids as sinusoids
from .tokens import Frame as Frame
