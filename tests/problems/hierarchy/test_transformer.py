"""The transformer with hand-set weights computes the exact marginals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import unn
from problems.hierarchy.grammar import Grammar, draw_rules, draw_trees
from problems.hierarchy.graph import declare
from problems.hierarchy.transformer import AttentionLayer, ExactTransformer


def grammar_of(symbols: int, levels: int, filtering: int, seed: int) -> Grammar:
    prior = np.random.default_rng(seed).dirichlet(np.ones(symbols))
    return Grammar(draw_rules(symbols, 1.0, seed), prior, levels, filtering)


def sequences_of(grammar: Grammar, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Leaves of the grammar, with masks of any number of them."""
    generator = torch.Generator().manual_seed(seed)
    leaves = draw_trees(grammar, count, generator)[grammar.levels]
    known = torch.rand(leaves.shape, generator=generator) < torch.rand(count, 1, generator=generator)
    return leaves, known


def difference(grammar: Grammar, leaves: Tensor, known: Tensor) -> float:
    """Largest difference from the exact marginals of the root and of all leaves."""
    root, marginals = ExactTransformer(grammar)(leaves, known)
    given = {"leaf": unn.Partial(one_hot(leaves, grammar.symbols).double(), known)}
    exact = unn.exact.marginals(declare(grammar), given)
    return max(float((root - exact["root"]).abs().max()), float((marginals - exact["leaf"]).abs().max()))


@pytest.mark.parametrize("filtering", range(5))
def test_marginals_at_four_symbols_and_four_levels_are_exact_to_1e_12(filtering: int) -> None:
    for seed in (0, 1):
        grammar = grammar_of(4, 4, filtering, seed)
        assert difference(grammar, *sequences_of(grammar, 200, seed)) < 1e-12


@pytest.mark.parametrize(("symbols", "levels"), [(2, 1), (2, 5), (3, 3), (5, 2)])
def test_marginals_of_other_sizes_are_exact(symbols: int, levels: int) -> None:
    for filtering in range(levels + 1):
        grammar = grammar_of(symbols, levels, filtering, filtering)
        assert difference(grammar, *sequences_of(grammar, 50, filtering)) < 1e-12


def test_marginals_of_random_leaves_are_exact() -> None:
    grammar = grammar_of(4, 4, 0, 1)
    generator = torch.Generator().manual_seed(0)
    leaves = torch.randint(4, (200, 16), generator=generator)
    known = torch.rand(200, 16, generator=generator) < 0.7
    assert difference(grammar, leaves, known) < 1e-11


def test_masked_symbols_are_ignored() -> None:
    grammar = grammar_of(3, 3, 1, 0)
    leaves, known = sequences_of(grammar, 20, 0)
    model = ExactTransformer(grammar)
    others = torch.where(known, leaves, (leaves + 1) % 3)
    for a, b in zip(model(leaves, known), model(others, known), strict=True):
        assert torch.equal(a, b)


def test_each_layer_of_the_tree_attends_to_the_sibling_subtree_alone() -> None:
    grammar = grammar_of(2, 3, 0, 0)
    model = ExactTransformer(grammar)
    x = model.embed(*sequences_of(grammar, 1, 0))
    heads = [layer for layer in model.layers if isinstance(layer, AttentionLayer)]
    leaf = torch.arange(8)
    for height, head in enumerate(heads):
        attention = ((x @ head.query) @ (x @ head.key).mT).softmax(-1)[0]
        sibling = (leaf[:, None] >> height ^ leaf >> height) == 1
        assert torch.allclose(attention, sibling.double() / 2**height, atol=1e-15)
    assert len(heads) == 3


def test_the_number_of_attention_layers_is_the_depth_without_filtering_and_one_more_for_the_star() -> None:
    for filtering in range(4):
        layers = ExactTransformer(grammar_of(2, 3, filtering, 0)).layers
        heads = sum(isinstance(layer, AttentionLayer) for layer in layers)
        assert heads == 3 - filtering + (filtering > 0)


@pytest.mark.parametrize(
    ("leaves", "known", "message"),
    [
        (torch.zeros(2, 4).long(), torch.ones(2, 4).bool(), "8 leaves"),
        (torch.zeros(2, 8).long(), torch.ones(2, 7).bool(), "same shape"),
        (torch.zeros(2, 8).long(), torch.ones(2, 8), "boolean"),
        (torch.full((2, 8), 3), torch.ones(2, 8).bool(), "between 0 and 2"),
        (torch.full((2, 8), -1), torch.ones(2, 8).bool(), "between 0 and 2"),
    ],
)
def test_other_sequences_are_refused(leaves: Tensor, known: Tensor, message: str) -> None:
    with pytest.raises(unn.UnnError, match=message):
        ExactTransformer(grammar_of(3, 3, 1, 0))(leaves, known)


def test_masked_symbols_may_be_any_number_and_others_are_of_dtype_int64() -> None:
    model = ExactTransformer(grammar_of(3, 2, 0, 0))
    leaves, known = torch.tensor([[0, 1, -1, 2]]), torch.tensor([[True, True, False, True]])
    first, _ = model(leaves, known)
    second, _ = model(leaves.clamp(min=0), known)
    assert torch.equal(first, second)
    with pytest.raises(unn.UnnError, match="int64"):
        model(leaves.int(), known)


@pytest.mark.parametrize("filtering", [0, 1])
def test_impossible_sequences_are_refused_and_so_are_those_that_would_lose_digits(filtering: int) -> None:
    rules = np.zeros((2, 2, 2))
    rules[0, 0, 0] = rules[1, 1, 1] = 1
    grammar = Grammar(rules, np.array([0.5, 0.5]), 1, filtering)
    every = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(unn.InferenceError, match="impossible"):
        ExactTransformer(grammar)(torch.tensor([[0, 1]]), every)
    e = 1e-9
    nearly = np.array([[[1 - 3 * e, e], [e, e]], [[e, e], [e, 1 - 3 * e]]])
    model = ExactTransformer(Grammar(nearly, np.array([0.5, 0.5]), 1, 0))
    with pytest.raises(unn.InferenceError, match="sequence 1 .* digits"):
        model(torch.tensor([[0, 0], [0, 1]]), every.expand(2, 2))
