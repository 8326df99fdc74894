"""Small graphs and checks that the tests of bad input share."""

import re
from dataclasses import dataclass

import pytest
import torch

import unn
from factors import Conv2d, Multilinear

NAN, INF = float("nan"), float("inf")
X = torch.linspace(-1, 1, 8).view(2, 4)
UNIFORM = torch.full((2, 3), 1 / 3)


def says(*words):
    """A pattern for messages that hold all these words."""
    return "(?s)" + "".join(f"(?=.*{re.escape(word)})" for word in words)


def mlp():
    """X (pixel=4) - H (hidden=5) - Y (label=3)."""
    torch.manual_seed(0)
    g = unn.FactorGraph("mlp", pixel=4, hidden=5, label=3)
    image = g.variable("X", "pixel", unn.SquaredNorm())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    W, V = g.parameter("W", "hidden pixel"), g.parameter("V", "label hidden")
    g.factor(Multilinear(H["h"], W["h x"], image["x"]))
    g.factor(Multilinear(Y["c"], V["c h"], H["h"]))
    return g


def pair(**sizes):
    """X (d=2) coupled to Z (n d), where nothing says how large n is."""
    g = unn.FactorGraph("pair", **{"d": 2, **sizes})
    x = g.variable("X", "d", unn.SquaredNorm())
    z = g.variable("Z", "n d", unn.SquaredNorm())
    g.factor(Multilinear(x["i"], z["n i"]))
    return g


def images(row=6, column=6, kernel=3, channel=2, feature=4, **options):
    """X (channel row column) convolved to H (feature row1 column1); sizes that are None stay open."""
    sizes = {
        "channel": channel,
        "row": row,
        "column": column,
        "feature": feature,
        "kernel": kernel,
        "block": options.pop("block", None),
    }
    g = unn.FactorGraph("images", **{axis: size for axis, size in sizes.items() if size is not None})
    x = g.variable("X", "channel row column", unn.SquaredNorm())
    h = g.variable("H", "feature row1 column1", unn.SignedEntropy())
    w = g.parameter("W", f"feature {'block' if options.get('groups') else 'channel'} kernel kernel")
    g.factor(Conv2d(h, w, x, **options))
    return g


@dataclass
class Anatomy:
    """All that a declaration consists of, to compare before and after."""

    arrays: list
    factors: list
    tensors: list
    sizes: dict

    @classmethod
    def of(cls, g):
        return cls(list(g.arrays.items()), list(g.factors.items()), sorted(g.state_dict()), dict(g.sizes))


def unchanged(g, attempt, error=unn.DeclarationError, match=None):
    """The attempt raises and leaves no trace."""
    before, text = Anatomy.of(g), repr(g)
    with pytest.raises(error, match=match):
        attempt()
    assert Anatomy.of(g) == before
    assert repr(g) == text


def done_or_refused(attempt, *words, error=unn.UnnError):
    """The result, or None where it was refused in these words."""
    try:
        return attempt()
    except error as refusal:
        message = str(refusal)
    assert re.search(says(*words), message), message
    return None


def with_entry(x, index, value):
    """A copy with another value at one index."""
    x = x.clone()
    x[index] = value
    return x


def named_mlp():
    """mlp() with names that are long enough to be misspelt."""
    g = unn.FactorGraph("named", pixel=4, label=3)
    image, label = (
        g.variable("image", "pixel", unn.SquaredNorm()),
        g.variable("label", "label", unn.Entropy()),
    )
    hidden = g.variable("hidden", "label", unn.SquaredNorm())
    g.factor(Multilinear(label["c"], g.parameter("W", "label pixel")["c x"], image["x"]))
    g.factor(Multilinear(label["c"], hidden["c"]))
    return g
