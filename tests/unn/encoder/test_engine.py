"""The engine encoder serves graphs of categories and bits."""

from __future__ import annotations

import pytest
import torch

import unn
from factors import Multilinear
from unn.encoder.engine import EncoderEngine
from unn.errors import ArgumentError, DeclarationError
from unn.testing import EngineContract


def graph() -> unn.FactorGraph:
    """Three categories with a bit each."""
    g = unn.FactorGraph("both", node=3, colour=3)
    x = g.variable("X", "node | colour", unn.Entropy())
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Multilinear(x["n c"], g.parameter("W", "node colour")["n c"], b["n"]))
    return g


class TestEncoder(EngineContract):
    def engine(self):
        return EncoderEngine()

    def graph(self):
        return graph()

    def examples(self, generator):
        colours = torch.randint(3, (8, 3), generator=generator)
        return {"X": torch.eye(3)[colours], "b": (colours == 1).float()}

    def given(self):
        return ("b",)


def test_real_numbers_are_refused_by_name():
    g = unn.FactorGraph("real", node=3)
    g.variable("X", "node", unn.SquaredNorm())
    assert "'X'" in EncoderEngine().refusal(g)
    with pytest.raises(DeclarationError, match="'X'"):
        unn.Encoder(g, unn.EncoderOptions(), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 6, "heads": 4}, "multiple of the heads"),
        ({"width": 3}, "even"),
        ({"blocks": 0}, "blocks"),
        ({"hidden": 0}, "hidden"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ArgumentError, match=message):
        unn.EncoderOptions(**options).check("run")


@pytest.mark.parametrize("option", ["tokens", "targets"])
def test_an_option_that_names_an_unknown_variable_is_refused_with_the_closest(option):
    with pytest.raises(DeclarationError, match=f"{option} names the variable 'x'.*'X'"):
        unn.Encoder(graph(), unn.EncoderOptions(**{option: ("x",)}), {})
