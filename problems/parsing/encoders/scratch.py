"""Encoders of sentences, trained from scratch: numbers of words in, one vector for the root and one for each word out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..vocabulary import NOTHING, UNIVERSAL_TAGS, UNKNOWN, Vocabulary

FORM_WIDTH, TAG_WIDTH, CHARACTER_WIDTH, SPELLING_WIDTH = 100, 32, 32, 64


class WordEmbedding(nn.Module):
    """Looks up forms and tags and reads spellings by a convolution over characters.

    Args:
        vocabulary: of the words.
        characters: read spellings.
        tags: look up tags.
        dropout: probability for a form to be taken for an unknown one, and for entries of the result.
    """

    def __init__(self, vocabulary: Vocabulary, characters: bool, tags: bool, dropout: float) -> None:
        super().__init__()
        self.form = nn.Embedding(len(vocabulary.forms) + 3, FORM_WIDTH, padding_idx=NOTHING)
        self.tag = nn.Embedding(len(UNIVERSAL_TAGS) + 3, TAG_WIDTH, padding_idx=NOTHING) if tags else None
        self.character = nn.Embedding(len(vocabulary.characters) + 3, CHARACTER_WIDTH, padding_idx=NOTHING) if characters else None
        self.spelling = nn.Conv1d(CHARACTER_WIDTH, SPELLING_WIDTH, 3, padding=1) if characters else None
        self.dropout = nn.Dropout(dropout)
        self.width = FORM_WIDTH + (TAG_WIDTH if tags else 0) + (SPELLING_WIDTH if characters else 0)
        for table in (self.form, self.tag, self.character):
            if table is not None:
                nn.init.normal_(table.weight, std=0.1)

    def forward(self, words: Tensor) -> Tensor:
        """Numbers of words, shape ``(count, features)``, to vectors, shape ``(count, width)``."""
        forms, tags, characters = words[:, 0].long(), words[:, 1].long(), words[:, 2:].long()
        if self.training and self.character is not None:
            # what is spelled out can also be understood without being looked up
            forgotten = torch.rand(forms.shape, device=forms.device) < 0.5 * self.dropout.p
            forms = torch.where(forgotten & (forms > 2), UNKNOWN, forms)
        parts = [self.form(forms)]
        if self.tag is not None:
            parts.append(self.tag(tags))
        if self.character is not None and self.spelling is not None:
            found, place = torch.unique(characters, dim=0, return_inverse=True)
            parts.append(self.spelling(self.character(found).transpose(1, 2)).amax(2)[place])
        dropped: Tensor = self.dropout(torch.cat(parts, 1))
        return dropped


class BiLSTM(nn.Module):
    """A bidirectional LSTM over the root and the words.

    Args:
        embedding: of single words.
        width: of the result, even.
        layers: how many.
        dropout: probability between layers and for the result.
    """

    def __init__(self, embedding: WordEmbedding, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = nn.LSTM(embedding.width, width // 2, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor) -> Tensor:
        """Shape ``(batch, n + 1, features)``, zeros in padding, to ``(batch, n + 1, width)``, zeros in padding."""
        here = present_rows(words)
        embedded = words.new_zeros(*words.shape[:2], self.embedding.width)
        embedded[here] = self.embedding(words[here]).to(embedded.dtype)
        packed = pack_padded_sequence(embedded, here.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        out: Tensor = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])[0]
        dropped: Tensor = self.dropout(out)
        return dropped


class Transformer(nn.Module):
    """A transformer over the root and the words, with sinusoidal positions.

    Args:
        embedding: of single words.
        width: of the result.
        layers: how many.
        dropout: probability inside.
    """

    def __init__(self, embedding: WordEmbedding, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.enter = nn.Linear(embedding.width, width)
        heads = next(count for count in (8, 4, 2, 1) if width % count == 0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        """Shape ``(batch, n + 1, features)``, zeros in padding, to ``(batch, n + 1, width)``, zeros in padding."""
        here = present_rows(words)
        embedded = words.new_zeros(*words.shape[:2], self.enter.out_features)
        embedded[here] = self.enter(self.embedding(words[here])).to(embedded.dtype)
        out: Tensor = self.layers(embedded + positions(words.shape[1], self.enter.out_features, words), src_key_padding_mask=~here)
        return torch.where(here[:, :, None], out, 0)


def present_rows(words: Tensor) -> Tensor:
    """Which rows are no padding, shape ``(batch, n + 1)``."""
    return (words != NOTHING).any(2)


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines, shape ``(length, width)`` (Vaswani et al., 2017, Section 3.5)."""
    half = (width + 1) // 2
    rate = torch.exp(torch.arange(half, dtype=torch.float32, device=like.device) * (-math.log(10_000.0) / half))
    angle = torch.arange(length, dtype=torch.float32, device=like.device)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :width].to(like.dtype)
