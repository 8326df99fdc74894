"""Sentence encoders trained from scratch: token ids to one vector for the root and one per word."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..vocabulary import NOTHING, UNIVERSAL_TAGS, UNKNOWN, Vocabulary

FORM_WIDTH, TAG_WIDTH, CHARACTER_WIDTH, SPELLING_WIDTH = 100, 32, 32, 64


class WordEmbedding(nn.Module):
    """Embeds forms, tags and, by a convolution, the characters of words.

    Args:
        vocabulary: vocabulary of forms and characters.
        characters: embed characters.
        tags: embed tags.
        dropout: dropout probability of the result; half of it is the probability to replace a form by
            unknown.
    """

    def __init__(self, vocabulary: Vocabulary, characters: bool, tags: bool, dropout: float) -> None:
        super().__init__()
        self.form = nn.Embedding(len(vocabulary.forms) + 3, FORM_WIDTH, padding_idx=NOTHING)
        self.tag = nn.Embedding(len(UNIVERSAL_TAGS) + 3, TAG_WIDTH, padding_idx=NOTHING) if tags else None
        self.character = (
            nn.Embedding(len(vocabulary.characters) + 3, CHARACTER_WIDTH, padding_idx=NOTHING)
            if characters
            else None
        )
        self.spelling = nn.Conv1d(CHARACTER_WIDTH, SPELLING_WIDTH, 3, padding=1) if characters else None
        self.dropout = nn.Dropout(dropout)
        self.width = FORM_WIDTH + (TAG_WIDTH if tags else 0) + (SPELLING_WIDTH if characters else 0)
        for table in (self.form, self.tag, self.character):
            if table is not None:
                nn.init.normal_(table.weight, std=0.1)

    def forward(self, words: Tensor) -> Tensor:
        """Embed token ids ``(count, features)`` as vectors ``(count, width)``."""
        forms, tags, characters = words[:, 0].long(), words[:, 1].long(), words[:, 2:].long()
        if self.training and self.character is not None:
            # trains the character convolution to represent unknown forms
            dropped_forms = torch.rand(forms.shape, device=forms.device) < 0.5 * self.dropout.p
            forms = torch.where(dropped_forms & (forms > 2), UNKNOWN, forms)
        parts = [self.form(forms)]
        if self.tag is not None:
            parts.append(self.tag(tags))
        if self.character is not None and self.spelling is not None:
            distinct, index = torch.unique(characters, dim=0, return_inverse=True)
            parts.append(self.spelling(self.character(distinct).transpose(1, 2)).amax(2)[index])
        dropped: Tensor = self.dropout(torch.cat(parts, 1))
        return dropped


class BiLSTM(nn.Module):
    """A bidirectional LSTM over the root and the words.

    Args:
        embedding: embedding of single words.
        width: width of the result, even.
        layers: number of layers.
        dropout: dropout probability between layers and for the result.
    """

    def __init__(self, embedding: WordEmbedding, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = nn.LSTM(
            embedding.width,
            width // 2,
            layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor) -> Tensor:
        """Encode ``(batch, n + 1, features)`` as ``(batch, n + 1, width)``, zeros in padding of both."""
        here = present_rows(words)
        embedded = words.new_zeros(*words.shape[:2], self.embedding.width)
        embedded[here] = self.embedding(words[here]).to(embedded.dtype)
        packed = pack_padded_sequence(embedded, here.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        out: Tensor = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=words.shape[1]
        )[0]
        dropped: Tensor = self.dropout(out)
        return dropped


class Transformer(nn.Module):
    """A transformer over the root and the words, with sinusoidal positions.

    Args:
        embedding: embedding of single words.
        width: width of the result.
        layers: number of layers.
        dropout: dropout probability of the layers.
    """

    def __init__(self, embedding: WordEmbedding, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.enter = nn.Linear(embedding.width, width)
        heads = next(count for count in (8, 4, 2, 1) if width % count == 0)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        """Encode ``(batch, n + 1, features)`` as ``(batch, n + 1, width)``, zeros in padding of both."""
        here = present_rows(words)
        embedded = words.new_zeros(*words.shape[:2], self.enter.out_features)
        embedded[here] = self.enter(self.embedding(words[here])).to(embedded.dtype)
        out: Tensor = self.layers(
            embedded + positions(words.shape[1], self.enter.out_features, words), src_key_padding_mask=~here
        )
        return torch.where(here[:, :, None], out, 0)


def present_rows(words: Tensor) -> Tensor:
    """Mask of rows that are not padding, shape ``(batch, n + 1)``."""
    return (words != NOTHING).any(2)


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines, shape ``(length, width)`` (Vaswani et al., 2017, Section 3.5)."""
    half = (width + 1) // 2
    rate = torch.exp(
        torch.arange(half, dtype=torch.float32, device=like.device) * (-math.log(10_000.0) / half)
    )
    angle = torch.arange(length, dtype=torch.float32, device=like.device)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :width].to(like.dtype)
