"""The engine on another device, without having one: no tensor is made in the wrong place, and nothing waits
that need not."""

import pytest
import torch
from support.device_cases import BATCH, CASES, REGULARIZERS, check_close, make, results
from support.elsewhere import DEVICE, Elsewhere, MixedDevicesError, There, WaitError, values
from support.helpers import mlp, says

import unn
from factors import Cardinality, Multilinear, SumOfProducts
from unn.noise import normal, uniform


def close(ours, expected):
    assert ours.keys() == expected.keys()
    for name, x in expected.items():
        assert isinstance(ours[name], There), f"{name} is on {ours[name].device}"
        torch.testing.assert_close(
            values(ours[name]),
            x.detach(),
            rtol=1e-9,
            atol=1e-9,
            msg=lambda text, name=name: f"{name}: {text}",
        )


# -- the device that the other tests run on ------------------------------------------------------------------


def test_tensors_elsewhere_keep_their_values_and_gradients():
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    with Elsewhere():
        there = x.to(DEVICE).requires_grad_()
        assert there.device == DEVICE and torch.equal(values(there), x)
        (there.tanh()[:, 1:].sum() * 2).backward()
        assert isinstance(there.grad, There)
        torch.testing.assert_close(values(there.grad), 2 * (1 - x.tanh() ** 2) * torch.tensor([0, 1, 1]))
        with torch.no_grad():
            there[0].zero_()
        assert values(there)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, 0),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 3)),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.stack([x, torch.zeros(3)]),
        lambda x: torch.rand(3, generator=torch.Generator(), device=DEVICE),
    ],
)
def test_tensors_and_generators_of_two_devices_do_not_mix(mix):
    with Elsewhere(), pytest.raises(MixedDevicesError):
        mix(torch.zeros(3).to(DEVICE))


@pytest.mark.parametrize(
    "read",
    [
        float,
        bool,
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x + 1),
        lambda x: torch.ones(1).to(DEVICE),
    ],
)
def test_reading_values_is_noticed_where_waiting_is_forbidden(read):
    with Elsewhere():
        x = torch.ones(1).to(DEVICE)
        read(x)
        with Elsewhere(waiting=False), pytest.raises(WaitError):
            read(x)


# -- the engine on it ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_inference_is_the_same_elsewhere(name):
    case = make(name)
    expected = results(case.infer())
    with Elsewhere():
        close(results(case.to(DEVICE).infer()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_unrolled_gradients_are_the_same_elsewhere(name):
    case = make(name)
    expected = case.gradients()
    with Elsewhere():
        close(case.to(DEVICE).gradients(), expected)


@pytest.mark.parametrize("name", [name for name in CASES if not make(name).waits])
def test_an_unrolled_network_of_exact_updates_waits_for_nothing_if_values_are_not_checked(name):
    with Elsewhere():
        run = make(name).to(DEVICE).unrolled(check_values=False)
        expected = run()
        with Elsewhere(waiting=False):
            out = run()
        assert torch.equal(values(out), values(expected))


@pytest.mark.parametrize("name", [name for name in CASES if not make(name).waits])
def test_autocast_leaves_every_case_finite_and_close_to_full_precision(name):
    case = make(name)
    half = case.to(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, gradients = half.infer(), half.gradients()
    cpu = torch.device("cpu")
    check_close(
        {"energy": out.energy, "want": out[case.want]},
        {"energy": case.infer().energy, "want": case.infer()[case.want]},
        0.08,
        cpu,
    )
    check_close(gradients, case.gradients(), 0.15, cpu)


def test_graphs_declared_elsewhere_stay_there():
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with Elsewhere():
        with DEVICE:
            g = mlp()
        options = {
            "order": unn.RandomOrder(["H", "Y"]),
            "initial": {"H": "random"},
            "dropout": {"H": 0.2},
            "iterations": range(1, 4),
        }
        assert unn.infer(g, {"X": x.to(DEVICE)}, **options)["Y"].device == DEVICE
        with DEVICE:
            assert unn.infer(g, {"X": x.to(DEVICE)}, **options)["Y"].device == DEVICE


def test_energies_and_their_shares_are_the_same_elsewhere():
    for name in ("attention", "patterns", "directed forward", "implicit"):
        case = make(name)
        inferred = case.infer().values
        constants = {n: x for n, x in case.given.items() if n not in case.graph.variables}
        expected = case.graph.energy({**inferred, **constants}, by_factor=True, lengths=case.lengths)
        with Elsewhere():
            there = case.to(DEVICE)
            everything = {n: x.detach().to(DEVICE) for n, x in {**inferred, **constants}.items()}
            close(there.graph.energy(everything, by_factor=True, lengths=there.lengths), expected)


def test_divergence_is_found_elsewhere():
    g = unn.FactorGraph("unbounded", n=2)
    x, y = (g.variable(name, "n", unn.SquaredNorm()) for name in "xy")
    g.factor(Multilinear(x["i"], y["i"], g.constant("J", "", torch.tensor(3.0))[""]))
    with Elsewhere():
        start = {"x": torch.ones(BATCH, 2).to(DEVICE)}
        out = unn.infer(g.to(DEVICE), {}, initial=start, order=["y", "x"], iterations=100)
    assert out.status.value == "unbounded" and f"in {BATCH} of {BATCH}" in out.message


def test_networks_move_between_devices_with_all_they_hold():
    """Blocks, tensors to begin with, and schedules that were used before the move."""
    net = unn.Unrolled(
        mlp(),
        "X",
        "Y",
        [unn.Block("H", torch.arange(5) < 3), "Y"],
        iterations=2,
        initial={"H": torch.full((2, 5), 0.5)},
        check_values=False,
    )
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    expected = net(x).detach()
    with Elsewhere():
        there = net.to(DEVICE)(x.to(DEVICE))
        torch.testing.assert_close(values(there), expected)
        torch.testing.assert_close(net.to("cpu")(x).detach(), expected)


def test_a_start_that_somebody_learns_stays_theirs():
    start = torch.nn.Parameter(torch.zeros(2, 5))
    net = unn.Unrolled(mlp(), "X", "Y", ["Y", "H"], initial={"H": start}).double().float()
    assert net.initial["H"] is start


def test_values_on_another_device_than_the_graph_are_named():
    with Elsewhere():
        there = torch.zeros(2, 4).to(DEVICE)
        with pytest.raises(unn.ObservationError, match=says("'X'", "meta", "cpu", ".to(")):
            unn.infer(mlp(), {"X": there}, order=["H", "Y"])
        with pytest.raises(unn.ObservationError, match=says("mask", "meta", "cpu")):
            unn.infer(
                mlp().to(DEVICE),
                {"X": unn.Partial(there, torch.ones(2, 4, dtype=torch.bool))},
                order=["H", "Y", "X"],
            )


# -- random numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [uniform, normal])
def test_a_generator_serves_tensors_of_any_device_with_the_same_numbers(draw):
    expected = draw((3, 2), torch.zeros(()), torch.Generator().manual_seed(3))
    with Elsewhere():
        drawn = draw((3, 2), torch.zeros(()).to(DEVICE), torch.Generator().manual_seed(3))
        assert torch.equal(values(drawn), expected)
        assert draw((3, 2), torch.zeros(()).to(DEVICE), None).device == DEVICE


@pytest.mark.parametrize(
    "options",
    [{"dropout": {"H": 0.4}}, {"initial": {"H": "random", "Y": "random"}}, {"iterations": range(1, 9)}],
    ids=str,
)
def test_one_generator_gives_all_that_is_random_in_a_run_elsewhere(options):
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    order = unn.RandomOrder(["H", "Y"])
    options = {"iterations": 3, **options}
    expected = unn.infer(mlp(), {"X": x}, order=order, generator=torch.Generator().manual_seed(5), **options)
    with Elsewhere():
        inferred = unn.infer(
            mlp().to(DEVICE),
            {"X": x.to(DEVICE)},
            order=order,
            generator=torch.Generator().manual_seed(5),
            **options,
        )
        assert inferred.schedule == expected.schedule
        torch.testing.assert_close(values(inferred["Y"]), expected["Y"].detach())


@pytest.mark.parametrize("name", REGULARIZERS)
def test_regularizers_are_the_same_elsewhere(name):
    r = REGULARIZERS[name]()
    t = torch.linspace(-3, 3, 24, dtype=torch.float64).reshape(2, 3, 4)
    mask = torch.arange(4) < torch.tensor([[4, 3, 2], [1, 0, 4]])[..., None]

    def everything(t, mask):
        x = r.mirror(t, mask)
        outputs = {
            "mirror": x,
            "conjugate": r.conjugate(t, mask),
            "value": r.value(x, mask),
            "contains": r.contains(x, mask),
        }
        outputs |= {"loss": r.loss(t, x, mask), "without mask": r.mirror(t)}
        if type(r).sample is not unn.Regularizer.sample:
            outputs["sample"] = r.sample(t, mask, torch.Generator().manual_seed(0))
        return outputs

    expected = everything(t, mask)
    with Elsewhere():
        close(everything(t.to(DEVICE), mask.to(DEVICE)), expected)


def test_counts_are_the_same_elsewhere():
    g = unn.FactorGraph("latin", r=3, c=3, v=3)
    factor = g.factor(Cardinality(g.variable("X", "r c | v", unn.Entropy())["r c v"], each="r v"))
    x = torch.eye(3)[torch.tensor([[[0, 1, 2], [1, 2, 0], [2, 2, 1]]])]
    expected = factor.violations(x)
    with Elsewhere():
        assert values(factor.violations(x.to(DEVICE))).tolist() == expected.tolist() == [2]


def test_equations_are_the_same_elsewhere():
    g = unn.FactorGraph("product", i=2, j=3, k=2)
    references = [
        g.variable(name, axes, unn.SquaredNorm())[axes]
        for name, axes in (("E", "i j"), ("A", "i k"), ("R", "k j"))
    ]
    factor = g.factor(SumOfProducts(*references, within=0.1))
    x = {"A": torch.rand(2, 2, 2), "R": torch.rand(2, 2, 3)}
    x["E"] = x["A"] @ x["R"] + torch.tensor([0.0, 0.2])[:, None, None]
    with Elsewhere():
        assert values(
            factor.violations_of({name: value.to(DEVICE) for name, value in x.items()})
        ).tolist() == [0, 6]


def test_the_adjacency_does_not_depend_on_the_device():
    g = make("grid").graph
    expected = g.adjacency()
    with Elsewhere() as device:
        g.to(DEVICE)
        before = device.seen
        adjacency = g.adjacency()
        assert device.seen == before
    assert adjacency.index().tolist() == expected.index().tolist()
