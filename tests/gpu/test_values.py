"""Regularizers, factors, inference and gradients give on a device what they give on the CPU in float64."""

import pytest
import torch
from support.device_cases import CASES, REGULARIZERS, check_close, make, results
from support.helpers import mlp

import unn
from factors import Cardinality, Multilinear, SumOfProducts

DTYPES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""With the share of the largest entry by which results may differ."""

INNER_SOLVER = {torch.float64: 1e-5, torch.float32: 3e-2}
"""The same where an inner solver stops at a tolerance."""

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def tolerance(case, dtype):
    return (INNER_SOLVER if case.waits else DTYPES)[dtype]


@dtypes
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_regularizers_give_the_values_of_the_cpu(name, masked, dtype, device):
    r = REGULARIZERS[name]()
    t = 2 * torch.randn(4, 3, 5, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 0])[:, None, None] if masked else None

    def everything(t, mask):
        t.requires_grad_()
        x = r.mirror(t, mask)
        values = {
            "mirror": x,
            "conjugate": r.conjugate(t, mask),
            "value at the mirror": r.value_at_mirror(x, t, mask),
            "loss": r.loss(t, x.detach().roll(1, 0), mask),
        }
        values["gradient"] = torch.autograd.grad(
            x.square().sum() + values["conjugate"].sum(), t, retain_graph=True
        )[0]
        return values

    expected = everything(t.clone(), mask)
    values = everything(t.to(device, dtype), None if mask is None else mask.to(device))
    check_close(values, expected, DTYPES[dtype], device)
    assert all(x.dtype == dtype for x in values.values())
    assert r.contains(values["mirror"], None if mask is None else mask.to(device)).all()


@pytest.mark.parametrize("name", ["SquaredNorm", "BinaryEntropy", "SignedEntropy", "Entropy"])
def test_samples_average_to_the_mirror_with_generators_of_either_device(name, device):
    r = REGULARIZERS[name]()
    t = torch.randn(1, 2, 3).to(device)
    for place in (device, "cpu"):
        many = t.expand(20_000, -1, -1)
        draws = r.sample(many, generator=torch.Generator(place).manual_seed(0))
        assert draws.device == device and r.contains(draws).all()
        assert float((draws.mean(0) - r.mirror(t)[0]).abs().max()) < 0.04
        assert torch.equal(draws, r.sample(many, generator=torch.Generator(place).manual_seed(0)))


@dtypes
@pytest.mark.parametrize("name", CASES)
def test_inference_gives_the_values_preactivations_and_energies_of_the_cpu(name, dtype, device):
    case = make(name)
    check_close(
        results(case.to(device, dtype).infer()), results(case.infer()), tolerance(case, dtype), device
    )


@dtypes
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_unrolled_networks_are_those_of_the_cpu(name, dtype, device):
    case = make(name)
    check_close(case.to(device, dtype).gradients(), case.gradients(), 10 * tolerance(case, dtype), device)


@pytest.mark.parametrize("name", CASES)
def test_energies_by_factor_are_those_of_the_cpu(name, device):
    case = make(name)
    constants = {n: x for n, x in case.given.items() if n not in case.graph.variables}
    values = {n: x.detach() for n, x in case.infer().values.items()} | constants
    expected = case.graph.energy(values, by_factor=True, lengths=case.lengths or None)
    there = case.to(device)
    ours = there.graph.energy(
        {n: x.to(device) for n, x in values.items()}, by_factor=True, lengths=there.lengths or None
    )
    check_close(ours, expected, 1e-9, device)


@pytest.mark.parametrize("name", ["mlp forward", "grid", "directed forward"])
def test_inference_converges_and_never_raises_the_energy(name, device):
    case = make(name).to(device)
    out = unn.infer(case.graph, case.given, order=case.order, until=1e-10)
    assert out.status.value == "converged"
    first = int(out.energy.isfinite().all(1).nonzero()[0])
    energies = out.energy[first:].detach()
    assert float((energies.diff(dim=0) / (1 + energies[1:].abs())).max()) <= 1e-9


def test_divergence_is_found_and_named(device):
    g = unn.FactorGraph("unbounded", n=2)
    x, y = (g.variable(name, "n", unn.SquaredNorm()) for name in "xy")
    g.factor(Multilinear(x["i"], y["i"], g.constant("J", "", torch.tensor(3.0))[""]))
    out = unn.infer(
        g.to(device), {}, initial={"x": torch.ones(4, 2, device=device)}, order=["y", "x"], iterations=100
    )
    assert out.status.value == "unbounded" and out["x"].isfinite().all()


@pytest.mark.parametrize("place", ["device", "cpu"])
def test_one_generator_gives_all_that_is_random_in_a_run(place, device):
    g, x = mlp().to(device), torch.linspace(-1, 1, 8).reshape(2, 4).to(device)

    def run(seed):
        generator = torch.Generator(device if place == "device" else "cpu").manual_seed(seed)
        order = unn.RandomOrder(["H", "Y"])
        options = {
            "initial": {"H": "random"},
            "dropout": {"H": 0.5},
            "iterations": range(2, 6),
            "generator": generator,
        }
        return unn.infer(g, {"X": x}, order=order, **options)

    first, again = run(3), run(3)
    assert first.schedule == again.schedule and torch.equal(first["Y"], again["Y"])
    assert any(
        run(seed).schedule != first.schedule or not torch.equal(run(seed)["H"], first["H"])
        for seed in range(5)
    )


def test_masks_from_a_generator_of_the_cpu_are_those_of_the_cpu(device):
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    options = {"order": ["H", "Y"], "dropout": {"H": 0.5}}
    expected = unn.infer(mlp(), {"X": x}, generator=torch.Generator().manual_seed(3), **options)
    inferred = unn.infer(
        mlp().to(device), {"X": x.to(device)}, generator=torch.Generator().manual_seed(3), **options
    )
    check_close(inferred.values, expected.values, 1e-5, device)


def test_a_network_that_ran_on_the_cpu_runs_on_the_device_and_back(device):
    """Blocks, tensors to begin with, and schedules that were used before the move."""
    order = [unn.Block("H", torch.arange(5) < 3), "Y"]
    net = unn.Unrolled(mlp(), "X", "Y", order, iterations=2, initial={"H": torch.full((2, 5), 0.5)})
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    expected = {"Y": net(x)}
    check_close({"Y": net.to(device)(x.to(device))}, expected, 1e-5, device)
    assert torch.equal(net.cpu()(x), expected["Y"])


def test_lengths_and_nodes_may_stay_on_the_cpu(device):
    for name in ("sequence", "grid blocks"):
        case = make(name)
        there = case.to(device)
        there.lengths = case.lengths
        check_close(results(there.infer()), results(case.infer()), 1e-9, device)


def test_values_on_the_cpu_are_refused_by_a_graph_on_the_device(cuda):
    with pytest.raises(unn.ObservationError, match="on device cpu, but the graph is on cuda"):
        unn.infer(mlp().to(cuda), {"X": torch.zeros(2, 4)}, order=["H", "Y"])


def test_counts_of_cardinalities_are_those_of_the_cpu(device):
    g = unn.FactorGraph("latin", r=3, c=3, v=3)
    factor = g.factor(Cardinality(g.variable("X", "r c | v", unn.Entropy())["r c v"], each="r v"))
    x = torch.eye(3)[torch.tensor([[[0, 1, 2], [1, 2, 0], [2, 2, 1]]])].to(device)
    assert factor.violations(x).tolist() == [2] and factor.counts(x).device == device


def test_equations_are_those_of_the_cpu(device):
    g = unn.FactorGraph("product", i=2, j=3, k=2)
    references = [
        g.variable(name, axes, unn.SquaredNorm())[axes]
        for name, axes in (("E", "i j"), ("A", "i k"), ("R", "k j"))
    ]
    factor = g.factor(SumOfProducts(*references, within=0.1))
    x = {"A": torch.rand(2, 2, 2, device=device), "R": torch.rand(2, 2, 3, device=device)}
    x["E"] = x["A"] @ x["R"] + torch.tensor([0.0, 0.2], device=device)[:, None, None]
    violations = factor.violations_of(x)
    assert violations.tolist() == [0, 6] and violations.device == device


def test_the_adjacency_needs_no_device(device):
    g = make("grid").graph
    expected = g.adjacency().index()
    g.to(device)
    before = torch.cuda.memory_stats(device)["allocation.all.allocated"] if device.type == "cuda" else 0
    index = g.adjacency().index()
    assert index.device.type == "cpu" and torch.equal(index, expected)
    assert not before or torch.cuda.memory_stats(device)["allocation.all.allocated"] == before


def test_a_graph_declared_on_the_device_infers_there(device):
    with device:
        g = mlp()
        out = unn.infer(
            g,
            {"X": torch.linspace(-1, 1, 8).reshape(2, 4)},
            order=unn.RandomOrder(["H", "Y"]),
            iterations=2,
            dropout={"H": 0.1},
        )
        adjacency = g.adjacency()
    assert out["Y"].device == device and adjacency.index().device.type == "cpu"
