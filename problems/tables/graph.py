"""Declarations of models of tables."""

from __future__ import annotations

import keyword
import re
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

import unn
from factors import Multilinear
from unn.errors import DataError
from unn.exact import ModelFile, read_bif, read_uai

from ..hierarchy.graph import logarithms

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@lru_cache(maxsize=8)
def read(text: str, name: str) -> ModelFile:
    """The model of a file's text, a Bayesian network if its name ends in .bif and else of UAI.

    Raises:
        DataError: for a malformed text, with the line.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name.removesuffix(".gz")
        path.write_text(text)
        try:
            return read_bif(path) if path.suffix.lower() == ".bif" else read_uai(path)
        except DataError as error:
            raise DataError(str(error).replace(str(path), name)) from None


def chain(nodes: int, states: int, scale: float, seed: int) -> unn.FactorGraph:
    """A chain with normal scores of the states of a node and of the pairs of neighbours.

    Args:
        nodes: number of nodes, at least 2.
        states: number of states.
        scale: standard deviation of the scores.
        seed: seed of the scores.
    """
    generator = torch.Generator().manual_seed(seed)
    g = unn.FactorGraph("chain", node=nodes, state=states)
    x = g.variable("x", "node | state", unn.Entropy())
    single = scale * torch.randn(nodes, states, generator=generator)
    pairs = scale * torch.randn(nodes - 1, states, states, generator=generator)
    left = g.index("left", "pair", list(range(nodes - 1)), into="node")
    right = g.index("right", "pair", list(range(1, nodes)), into="node")
    g.factor(Multilinear(g.constant("single", "node state", single)["i a"], x["i a"], name="scores"))
    table = g.constant("pairs", "pair state other", pairs)
    g.factor(Multilinear(table["p a b"], x[f"{left.name}[p] a"], x[f"{right.name}[p] b"], name="neighbours"))
    return g


def names_of(model: ModelFile) -> list[str]:
    """Names of the variables of a declaration: those of the file where a declaration can have them, else
    their numbers, v0, v1 and so on."""
    taken = unn.FactorGraph("names")

    def can_be_name(name: str) -> bool:
        internal = keyword.iskeyword(name) or hasattr(taken, name) or re.fullmatch(r"table\d+", name)
        return name.isidentifier() and not internal

    return [name if can_be_name(name) else f"v{k}" for k, name in enumerate(model.names)]


def declare(model: ModelFile) -> unn.FactorGraph:
    """A variable for each of a model, and a factor for each table, with its logarithms as constants.

    Raises:
        DataError: for names that are the same once they are made names of variables, or a table of more
            than 26 variables.
    """
    names = names_of(model)
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise DataError(f"{model.name}: two variables are named {repeated[0]!r}; rename one in the file.")
    sizes = sorted({len(states) for states in model.states})
    g = unn.FactorGraph("tables", **{f"states{size}": size for size in sizes})
    variables = [
        g.variable(name, f"states{len(states)}", unn.Entropy())
        for name, states in zip(names, model.states, strict=True)
    ]
    for number, (scope, weights) in enumerate(zip(model.scopes, model.potentials, strict=True)):
        if len(scope) > len(_LETTERS):
            raise DataError(
                f"{model.name}: table {number} has {len(scope)} variables, more than {len(_LETTERS)}."
            )
        if not scope:
            # a constant changes no probability
            continue
        logs = logarithms(weights)
        # the axes of an array differ in their names
        axes = [f"axis{place}of{size}" for place, size in enumerate(weights.shape)]
        letters = _LETTERS[: len(scope)]
        table = g.constant(f"table{number}", " ".join(axes), logs)
        references = [variables[v][letter] for v, letter in zip(scope, letters, strict=True)]
        g.factor(Multilinear(table[" ".join(letters)], *references, name=f"factor{number}"))
    return g
