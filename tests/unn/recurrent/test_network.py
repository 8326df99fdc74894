"""The recurrent transformer agrees with the published one, and loads its weights by name."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn
from unn.errors import DataError
from unn.ops.attention import AttentionMask
from unn.recurrent.network import RecurrentTransformer

GOLDEN = Path(__file__).parents[2] / "golden" / "recurrent"
DATA = Path(os.environ.get("UNN_DATA", "")) / "csp" / "shortest_path_4x4.npz"


def golden(name):
    with np.load(GOLDEN / f"{name}.npz") as content:
        return {key: torch.from_numpy(content[key]) for key in content.files}


def published(dtype):
    values = golden("rt_sudoku_L1R2H4")
    network = RecurrentTransformer(10, 81, 9).to(dtype).eval()
    weights = {name.removeprefix("param/"): x for name, x in values.items() if name.startswith("param/")}
    network.load_published(weights)
    return network, weights, values


def test_there_are_as_many_parameters_as_in_the_paper():
    assert sum(p.numel() for p in RecurrentTransformer(10, 81, 9).parameters()) == 211_328


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@torch.no_grad()
def test_states_outputs_and_attention_are_those_of_the_published_code(dtype, tolerance):
    network, _, values = published(dtype)
    embedded = state = network.embed(values["tokens"].long())
    for recurrence in (1, 2):
        (output,) = network.recur(embedded, state, with_attention=True)
        state = output.state
        for actual, name in (
            (network.classify(state), f"logits_r{recurrence}"),
            (state, f"hidden_r{recurrence}"),
            (output.attention[0], f"att_logits_r{recurrence}_b0"),
        ):
            torch.testing.assert_close(actual.double(), values[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("recurrences", [32, 64])
@torch.no_grad()
def test_many_recurrences_agree_with_the_published_code(recurrences):
    network, _, values = published(torch.float64)
    logits = network(values["tokens"].long(), recurrences)
    torch.testing.assert_close(logits, values[f"logits_T{recurrences}"], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_losses_of_attention_are_those_of_the_published_code():
    network, _, values = published(torch.float64)
    neighbours = torch.from_numpy(declare_sudoku(3, 3).adjacency().matrix.toarray()).double()
    embedded = state = network.embed(values["tokens"].long())
    for recurrence in range(2):
        (output,) = network.recur(embedded, state, with_attention=True)
        state = output.state
        loss = unn.attention_loss(output.attention.softmax(-1), neighbours, reduction="mean").mean()
        assert float(loss) == pytest.approx(float(values["att_c1"][recurrence]), abs=1e-9)


@torch.no_grad()
def test_an_injected_input_changes_every_recurrence_but_the_embedding():
    torch.manual_seed(0)
    network = RecurrentTransformer(4, 5, 3, width=8, dropout=0.0, inject=True).eval()
    embedded = network.embed(torch.arange(4).expand(2, 4)[:, [0, 1, 2, 3, 0]])
    network.inject = False
    plain = network.advance(embedded, 2 * embedded, 1)
    network.inject = True
    torch.testing.assert_close(network.advance(embedded, embedded, 1), plain)


@torch.no_grad()
def test_places_of_tokens_matter_before_training_with_a_deviation_of_their_embeddings_alone():
    order, tokens = torch.tensor([2, 0, 1, 4, 3]), torch.tensor([[0, 1, 2, 1, 0]])
    for deviation, alike in ((0.0, True), (0.2, False)):
        torch.manual_seed(0)
        network = RecurrentTransformer(3, 5, 4, width=256, position_deviation=deviation).double().eval()
        assert float(network.position.square().mean().sqrt()) == pytest.approx(deviation, rel=0.1)
        moved = network(tokens[:, order], 3)
        assert torch.allclose(moved, network(tokens, 3)[:, order], rtol=0, atol=1e-9) is alike


def test_published_weights_that_do_not_fit_are_named():
    network, weights, _ = published(torch.float32)
    without = {name: x for name, x in weights.items() if name != "blocks.0.attn.key.bias"}
    with pytest.raises(DataError, match=r"blocks\.0\.attn\.key\.bias.*missing"):
        network.load_published(without)
    with pytest.raises(DataError, match="'extra'"):
        network.load_published({**weights, "extra": torch.zeros(1)})
    with pytest.raises(DataError, match=r"position has shape \(80, 128\)"):
        network.load_published({**weights, "pos_emb": weights["pos_emb"][:, :80]})


@torch.no_grad()
def shortest_path_logits(open_edges, endpoints):
    """Logits of the edges of 4x4 grids by the released weights; tokens are nodes, then edges."""
    network = RecurrentTransformer(4, 40, 2).eval()
    network.load_published(golden("sp4_authors_ckpt_base"))
    nodes = torch.zeros(len(open_edges), 16, dtype=torch.long).scatter_(1, endpoints, 1)
    return network(torch.cat([nodes, open_edges + 2], 1), 32)


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="no shortest paths under $UNN_DATA")
def test_the_released_weights_reach_the_published_figures_of_shortest_paths():
    data, expected = np.load(DATA), golden("sp4_authors_eval")
    test = data["test_idx"]
    open_edges = torch.from_numpy(data["edge_kept"][test]).long()
    endpoints = torch.from_numpy(data["endpoints"][test]).long()
    logits = shortest_path_logits(open_edges, endpoints)
    torch.testing.assert_close(logits[:8].double(), expected["base_logits_first8_T32"], rtol=1e-3, atol=1e-3)
    chosen = logits[:, 16:].argmax(-1)
    edges = data["edges"].tolist()
    paths = sum(is_path(c.nonzero()[:, 0].tolist(), edges, *e) for c, e in zip(chosen, endpoints.tolist()))
    possible = (chosen <= open_edges).all(1).sum()
    first = data["path_offsets"]
    shortest = sum(
        any((c.numpy() == path).all() for path in data["path_edges"][first[k] : first[k + 1]])
        for c, k in zip(chosen, test, strict=True)
    )
    figures = [round(100 * int(x) / len(test), 2) for x in (paths, possible, shortest)]
    assert figures == [84.47, 100.0, 83.54]


def is_path(chosen, edges, start, end):
    """Whether edges are one simple path between two nodes."""
    left, here = set(chosen), start
    while True:
        onward = [k for k in left if here in edges[k]]
        if len(onward) != 1:
            return here == end and not left
        left.remove(onward[0])
        here = sum(edges[onward[0]]) - here


def mask_with_an_isolated_node():
    """The mask of six nodes: one with two neighbours, and one with none, not even itself."""
    pairs = torch.eye(6, dtype=torch.bool)
    pairs[0, 1] = pairs[1, 0] = pairs[0, 2] = pairs[2, 0] = True
    pairs[5, 5] = False
    return AttentionMask.of(pairs)


@pytest.mark.parametrize("mask", [None, mask_with_an_isolated_node()], ids=["all", "masked"])
def test_training_drops_entries_and_keeps_the_mean_of_a_linear_block(mask):
    torch.manual_seed(0)
    block = RecurrentTransformer(5, 6, 4, width=16, heads=2, dropout=0.3).double().blocks[0]
    # what follows the attention is linear
    block.narrow.weight.data.zero_()
    block.out.weight.data.copy_(torch.eye(16))
    x = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    expected, _ = block.eval()(x, mask, False)
    block.train()
    samples = block(x.expand(20_000, 6, 16), mask, False)[0]
    torch.testing.assert_close(samples.mean(0, keepdim=True), expected, atol=0.03, rtol=0)
    (gradient,) = torch.autograd.grad(samples.sum(), x)
    assert bool(gradient.isfinite().all())
    # with dropout of the attention an entry has more than two values
    assert len(samples[:, 0, 0].unique()) > 2
    assert block(x, mask, False)[1] is None and block(x, mask, True)[1].shape == (1, 2, 6, 6)


def test_tokens_outside_of_the_mask_have_no_part_in_training_with_dropout():
    mask = mask_with_an_isolated_node()
    block = RecurrentTransformer(5, 6, 4, width=16, heads=2, dropout=0.3).double().blocks[0].train()
    x = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    reached = torch.zeros(6, 6, dtype=torch.bool)
    for _ in range(20):
        out, _ = block(x, mask, False)
        for k in range(6):
            (gradient,) = torch.autograd.grad(out[0, k].square().sum(), x, retain_graph=True)
            reached[k] |= gradient[0].abs().amax(1) > 0
    expected = torch.from_numpy(mask.adjacency.matrix.toarray()).bool() | torch.eye(6, dtype=torch.bool)
    assert torch.equal(reached, expected)
