"""Circuits: the outputs of gates, and circuits whose output no constant predicts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from problems.boolean import graph as boolean

GOLDEN = Path(__file__).parents[2] / "golden"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_gates_and_truth_tables_are_those_of_the_reference():
    golden = np.load(GOLDEN / "boolean_depth2_int.npz")
    is_or = [gate == "or" for gate in golden["gates"].tolist()]
    layers = boolean.run(
        [torch.tensor(is_or[:2]), torch.tensor(is_or[2:])], torch.from_numpy(golden["truth_inputs"]).bool()
    )
    assert torch.equal(layers[0], torch.from_numpy(golden["truth_inputs"]).bool())
    assert torch.equal(torch.cat(layers[1:], 1), torch.from_numpy(golden["truth_activations"]).bool())


def evaluated(gates, inputs):
    """The outputs of all layers for one example, gate by gate."""
    layers = [list(inputs)]
    for layer in gates:
        below = layers[-1]
        layers.append(
            [(any if is_or else all)(below[2 * k : 2 * k + 2]) for k, is_or in enumerate(layer.tolist())]
        )
    return layers


@given(depth=st.integers(1, 5), gates=st.integers(0, 2**62), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_outputs_are_those_of_the_gates_one_by_one(depth, gates, seed):
    is_or = boolean.gates_of(depth, gates)
    assert [len(layer) for layer in is_or] == [2 ** (depth - 1 - k) for k in range(depth)]
    values = boolean.generate(is_or, 4, True, generator(seed))
    assert list(values) == [f"L{k}" for k in range(depth + 1)]
    for k in range(4):
        expected = evaluated(is_or, [bool(x) for x in values["L0"][k]])
        assert [values[f"L{layer}"][k].bool().tolist() for layer in range(depth + 1)] == expected
    ends = boolean.generate(is_or, 4, False, generator(seed))
    assert list(ends) == ["L0", f"L{depth}"] and all(torch.equal(ends[name], values[name]) for name in ends)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_share_of_ones_is_that_among_all_inputs(depth):
    inputs = torch.cartesian_prod(*[torch.tensor([False, True])] * 2**depth)
    for seed in range(5):
        gates = [torch.rand(2 ** (depth - 1 - k), generator=generator(seed)) < 0.5 for k in range(depth)]
        assert boolean.share_of_ones(gates) == pytest.approx(
            boolean.run(gates, inputs)[-1].double().mean().item(), abs=1e-12
        )


@pytest.mark.parametrize("depth", range(2, 13))
def test_no_constant_predicts_the_output_of_a_circuit(depth):
    assert all(0.25 < boolean.share_of_ones(boolean.gates_of(depth, seed)) < 0.75 for seed in range(5))


def test_gates_are_a_function_of_their_seed_and_of_both_sorts():
    gates = [torch.cat(boolean.gates_of(6, seed)) for seed in (0, 0, 1)]
    assert torch.equal(gates[0], gates[1]) and not torch.equal(gates[0], gates[2])
    assert all(10 < int(g.sum()) < 53 for g in gates)
    inputs = boolean.generate(boolean.gates_of(3, 0), 4000, False, generator(0))["L0"]
    assert inputs.mean() == pytest.approx(0.5, abs=0.015)


@given(depth=st.integers(1, 4), gates=st.integers(0, 2**62), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_gates_are_thresholds_of_their_inputs_so_that_one_round_forward_runs_the_circuit(depth, gates, seed):
    """One round only: in later ones the outputs of a layer also depend on those of the next."""
    is_or = boolean.gates_of(depth, gates)
    inputs = torch.rand(8, 2**depth, generator=generator(seed)) < 0.5
    expected = boolean.run(is_or, inputs)
    g = unn.relax(boolean.declare(depth, True, energy=True))
    layers = [f"L{k}" for k in range(1, depth + 1)]
    with torch.no_grad():
        for name, gate in zip(layers, is_or, strict=True):
            getattr(g, f"W_{name}").fill_(10)
            getattr(g, f"b_{name}").copy_(torch.where(gate, -5.0, -15.0))
    values = unn.infer(g, {"L0": inputs.float()}, order=layers, iterations=1).values
    for name, outputs in zip(layers, expected[1:], strict=True):
        assert torch.equal(values[name].round(), outputs.float())
