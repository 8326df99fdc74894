"""The engine: orders, iterations, initial values, observations, padding, statuses, gradients."""

import copy
import itertools
import pickle

import pytest
import torch
from support.problem_graphs import convolutional

import unn
from factors import Directed, Implicit, Multilinear


def mlp(pixel=6, hidden=5, label=3, seed=0, double=True):
    torch.manual_seed(seed)
    g = unn.FactorGraph("mlp", pixel=pixel, hidden=hidden, label=label)
    X = g.variable("X", "pixel", unn.SquaredNorm())
    H = g.variable("H", "hidden", unn.SignedEntropy())
    Y = g.variable("Y", "label", unn.Entropy())
    W, V = g.parameter("W", "hidden pixel"), g.parameter("V", "label hidden")
    b = g.parameter("b", "hidden", init="normal")
    g.factor(Multilinear(H["h"], W["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], V["c h"], H["h"]))
    g.factor(Multilinear(b["h"], H["h"]))
    return g.double() if double else g


def words(d=3, seed=0):
    """A small undirected attention network over sequences, with bounded queries and keys."""
    torch.manual_seed(seed)
    g = unn.FactorGraph("words", d=d, e=d)
    X = g.variable("X", "n d", unn.SquaredNorm())
    Q, K, H = (g.variable(name, "n e", unn.SignedEntropy()) for name in "QKH")
    S = g.variable("S", "n m", unn.SimplexNorm())
    P = g.constant("P", "n d")
    W = {name: g.parameter(f"W{name}", "e d", init="normal") for name in "QKH"}
    for name, variable in zip("QKH", (Q, K, H), strict=True):
        g.factor(Multilinear(variable["n e"], W[name]["e d"], X["n d"]))
        g.factor(Multilinear(variable["n e"], W[name]["e d"], P["n d"]))
    g.factor(Multilinear(S["n m"], Q["n e"], K["m e"]))
    g.factor(Multilinear(S["n m"], H["n e"], X["m e2"], g.parameter("U", "e e2", init="normal")["e e2"]))
    return g.double()


def test_forward_and_reverse_use_the_same_weights():
    g = mlp()
    x = torch.randn(4, 6, dtype=torch.float64)
    forward = unn.infer(g, {"X": x}, order=["H", "Y"], iterations=2)
    reverse = unn.infer(g, {"Y": torch.eye(3, dtype=torch.float64)}, order=["H", "X"], iterations=2)
    h = torch.tanh(x @ g.W.T + g.b)
    y = torch.softmax(h @ g.V.T, 1)
    torch.testing.assert_close(forward["Y"], torch.softmax(torch.tanh(x @ g.W.T + g.b + y @ g.V) @ g.V.T, 1))
    h = torch.tanh(g.V + g.b)
    torch.testing.assert_close(reverse["X"], torch.tanh(g.V + g.b + h @ g.W @ g.W.T) @ g.W)


def test_forward_backward_orders_are_those_of_the_paper():
    assert unn.ForwardBackward(["H1", "H2", "Y"]).round() == ("H1", "H2", "Y", "H2")
    assert "".join(unn.ForwardBackward(list("QKVSH"), last="X").round()) == "QKVSHSVKQX"
    assert unn.ForwardBackward(["H"]).round() == ("H",)
    assert unn.ForwardBackward(["H", "Y"]).round() == ("H", "Y")


def test_random_orders_are_fresh_permutations_with_the_last_one_last():
    order = unn.RandomOrder(list("ABCDE"), last="X")
    generator = torch.Generator().manual_seed(0)
    rounds = [order.round(generator) for _ in range(20)]
    assert all(sorted(r[:-1]) == list("ABCDE") and r[-1] == "X" for r in rounds)
    assert len(set(rounds)) > 10
    again = torch.Generator().manual_seed(0)
    assert rounds == [order.round(again) for _ in range(20)]


def test_random_order_runs_are_deterministic_under_a_generator():
    g = mlp()
    x = torch.randn(4, 6, dtype=torch.float64)
    runs = [
        unn.infer(
            g,
            {"X": x},
            order=unn.RandomOrder(["H", "Y"]),
            iterations=range(2, 9),
            generator=torch.Generator().manual_seed(5),
        )
        for _ in range(2)
    ]
    assert runs[0].schedule == runs[1].schedule
    assert torch.equal(runs[0]["Y"], runs[1]["Y"])


def test_default_order_goes_outwards_from_what_is_given():
    g = mlp()
    assert unn.infer(g, {"X": torch.randn(1, 6, dtype=torch.float64)}).schedule == ("H", "Y")
    assert unn.infer(g, {"Y": torch.eye(3, dtype=torch.float64)[:1]}).schedule == ("H", "X")


def test_until_stops_when_nothing_changes_and_says_so():
    g = mlp()
    x = torch.randn(4, 6, dtype=torch.float64)
    out = unn.infer(g, {"X": x}, order=["H", "Y"], until=1e-10)
    assert out.converged and out.status is unn.Status.CONVERGED
    more = unn.infer(g, {"X": x}, order=["H", "Y"], iterations=out.rounds + 20)
    torch.testing.assert_close(out["Y"], more["Y"], atol=1e-9, rtol=0)
    capped = unn.infer(g, {"X": x}, order=["H", "Y"], until=1e-300, iterations=3)
    assert capped.status is unn.Status.LIMIT and capped.rounds == 3 and "raise iterations" in capped.message


def test_range_of_iterations_draws_every_number():
    g = mlp()
    x = torch.randn(1, 6, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rounds = {
        unn.infer(g, {"X": x}, order=["H", "Y"], iterations=range(1, 4), generator=generator).rounds
        for _ in range(40)
    }
    assert rounds == {1, 2, 3}


def test_initial_values_are_used_and_mean_what_they_say():
    g = mlp()
    x = torch.randn(2, 6, dtype=torch.float64)
    y0 = torch.tensor([[0.2, 0.3, 0.5]] * 2, dtype=torch.float64)
    out = unn.infer(g, {"X": x}, order=["H", "Y"], initial={"Y": y0})
    torch.testing.assert_close(out["H"], torch.tanh(x @ g.W.T + g.b + y0 @ g.V))
    uniform = unn.infer(g, {"X": x}, order=["H", "Y"], initial={"Y": "uniform"})
    torch.testing.assert_close(uniform["H"], torch.tanh(x @ g.W.T + g.b + g.V.mean(0)))
    held = unn.infer(g, {"X": x}, order=["H"], initial={"Y": "zero"})
    torch.testing.assert_close(held["H"], torch.tanh(x @ g.W.T + g.b))
    random = [
        unn.infer(
            g, {"X": x}, order=["H"], initial={"Y": "random"}, generator=torch.Generator().manual_seed(s)
        )
        for s in (1, 1, 2)
    ]
    assert torch.equal(random[0]["Y"], random[1]["Y"]) and not torch.equal(random[0]["Y"], random[2]["Y"])
    torch.testing.assert_close(random[0]["Y"].sum(1), torch.ones(2, dtype=torch.float64))


def test_partial_observation_holds_what_is_seen_and_infers_the_rest():
    g = mlp()
    x = torch.randn(3, 6, dtype=torch.float64)
    mask = torch.rand(3, 6) < 0.5
    out = unn.infer(
        g,
        {"X": unn.Partial(x, mask), "Y": torch.eye(3, dtype=torch.float64)},
        order=["H", "X"],
        iterations=200,
        until=1e-12,
    )
    assert out.converged
    assert torch.equal(out["X"][mask], x[mask])
    torch.testing.assert_close(out["X"][~mask], (out["H"] @ g.W)[~mask])
    assert out.energy.diff(dim=0).max() <= 1e-12


def test_unseen_entries_of_a_partial_observation_may_hold_anything():
    g = mlp()
    x = torch.randn(3, 6, dtype=torch.float64)
    mask = torch.rand(3, 6) < 0.5
    junk = torch.where(mask, x, torch.nan)
    a, b = (unn.infer(g, {"X": unn.Partial(v, mask)}, order=["H", "Y", "X"], iterations=2) for v in (x, junk))
    assert torch.equal(a["X"], b["X"]) and torch.equal(a["Y"], b["Y"])


@pytest.mark.parametrize("extra", [1, 4])
def test_padding_changes_nothing(extra):
    """Every sequence alone, all of them padded together, and with more padding: equal values and energies."""
    g = words()
    lengths = torch.tensor([5, 2, 3])
    longest = 5 + extra
    p = torch.randn(longest, 3, dtype=torch.float64)
    x = torch.randn(3, longest, 3, dtype=torch.float64)
    seen = torch.rand(3, longest) < 0.6
    order = unn.ForwardBackward(["Q", "K", "S", "H"], last="X")
    padded = unn.infer(
        g, {"X": unn.Partial(x, seen), "P": p}, order=order, iterations=3, lengths={"n": lengths}
    )
    for k, length in enumerate(lengths.tolist()):
        given = {"X": unn.Partial(x[k : k + 1, :length], seen[k : k + 1, :length]), "P": p[:length]}
        alone = unn.infer(g, given, order=order, iterations=3)
        for name in "XQKH":
            torch.testing.assert_close(padded[name][k : k + 1, :length], alone[name], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            padded["S"][k : k + 1, :length, :length], alone["S"], rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(padded.energy[-1, k], alone.energy[-1, 0], rtol=1e-11, atol=1e-11)
        assert (padded["S"][k, length:] == 0).all() and (padded["S"][k, :, length:] == 0).all()
    torch.testing.assert_close(
        padded.energy[-1], g.energy({**padded.values, "P": p}, lengths={"n": lengths}), rtol=1e-11, atol=1e-11
    )


def test_renaming_and_permuting_variables_changes_nothing():
    torch.manual_seed(0)
    w, v = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64)
    results = []
    for names in (("X", "H", "Y"), ("cause", "middle", "effect")):
        for first, second in itertools.permutations((0, 1)):
            g = unn.FactorGraph("g", a=3, b=4, c=2)
            made = {}
            for k in [2, 0, 1] if first else [0, 1, 2]:
                made[k] = g.variable(
                    names[k], "abc"[k], (unn.SquaredNorm(), unn.NonNegative(), unn.Entropy())[k]
                )
            W, V = g.parameter("W", "b a", init=w), g.parameter("V", "b c", init=v)
            factors = [
                Multilinear(made[1]["i"], W["i j"], made[0]["j"]),
                Multilinear(V["p q"], made[2]["q"], made[1]["p"]),
            ]
            g.factor(factors[first])
            g.factor(factors[second])
            out = unn.infer(g, {names[0]: x}, order=[names[1], names[2]], iterations=4)
            results.append((out[names[2]], out.energy[-1]))
    for y, e in results[1:]:
        torch.testing.assert_close(y, results[0][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(e, results[0][1], rtol=1e-12, atol=1e-12)


def grid(regularizer, coupling, states=None, size=3):
    axes = "r c" if states is None else "r c | v"
    g = unn.FactorGraph("grid", r=size, c=size, **({} if states is None else {"v": states}))
    s = g.variable("s", axes, regularizer)
    torch.manual_seed(1)
    field = g.parameter("field", axes.replace("|", ""), init=0.5)
    if states is None:
        J = g.parameter("J", "", init=lambda t: t.fill_(coupling))
        g.factor(Multilinear(J[""], s["i j"], s["i+1 j"]))
        g.factor(Multilinear(J[""], s["i j"], s["i j+1"]))
        g.factor(Multilinear(field["i j"], s["i j"]))
    else:
        T = g.parameter("T", "v w", init=coupling * torch.eye(states))
        g.factor(Multilinear(s["i j v"], T["v w"], s["i+1 j w"]))
        g.factor(Multilinear(s["i j v"], T["v w"], s["i j+1 w"]))
        g.factor(Multilinear(field["i j v"], s["i j v"]))
    return g.double()


@pytest.mark.parametrize("coupling", [0.3, 1.5, -1.5])
@pytest.mark.parametrize("states", [None, 2, 3])
def test_ising_and_potts_grids_fall_in_energy_in_two_exact_sub_blocks(coupling, states):
    regularizer = unn.SignedEntropy() if states is None else unn.Entropy()
    g = grid(regularizer, coupling, states)
    shape = (4, 3, 3) if states is None else (4, 3, 3, states)
    start = regularizer.mirror(torch.randn(shape, dtype=torch.float64))
    out = unn.infer(g, {}, initial={"s": start}, order=["s"], iterations=20)
    assert out.schedule[:2] == ("s (5 nodes)", "s (4 nodes)")
    energies = torch.cat([g.energy({"s": start})[None], out.energy])
    assert (energies.diff(dim=0) <= 1e-10).all()
    torch.testing.assert_close(out.energy[-1], g.energy(out.values), rtol=1e-10, atol=1e-10)
    settled = unn.infer(g, {}, initial={"s": start}, order=["s"], until=1e-12)
    assert settled.converged
    for _ in range(30):
        node = torch.randint(3, (2,)).tolist()
        other = settled["s"].clone()
        other[:, node[0], node[1]] = regularizer.mirror(torch.randn(shape, dtype=torch.float64))[
            :, node[0], node[1]
        ]
        assert (g.energy({"s": other}) >= g.energy(settled.values) - 1e-9).all()


def test_cold_ising_grid_reaches_a_local_minimum_of_the_enumeration():
    """At strong coupling the mean-field minimum is a spin configuration; enumerate all 512 and check that no
    single flip is lower."""
    g = grid(unn.SignedEntropy(), 4.0)
    spins = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=9)), dtype=torch.float64).view(-1, 3, 3)
    energies = g.energy({"s": spins})
    start = 0.1 * torch.randn(16, 3, 3, dtype=torch.float64)
    out = unn.infer(g, {}, initial={"s": start}, order=["s"], until=1e-12)
    reached = out["s"].sign()
    for k in range(16):
        index = int((spins == reached[k]).all((1, 2)).nonzero())
        neighbours = (spins != reached[k]).sum((1, 2)) == 1
        assert energies[index] <= energies[neighbours].min() + 1e-9
    best = spins[energies.argmin()]
    assert any(torch.equal(reached[k], best) for k in range(16))


def test_hopfield_network_updates_one_node_at_a_time_and_recalls_a_pattern():
    torch.manual_seed(0)
    pattern = torch.randn(1, 12, dtype=torch.float64).sign()
    g = unn.FactorGraph("hopfield", n=12)
    s = g.variable("s", "n", unn.SignedEntropy())
    W = g.parameter("W", "n m", init=(pattern.T @ pattern))
    g.factor(Multilinear(W["i j"], s["i"], s["j"], where="i < j"))
    g.double()
    noisy = 0.9 * pattern.clone()
    noisy[0, :3] *= -1
    out = unn.infer(g, {}, initial={"s": noisy}, order=["s"], iterations=3)
    assert out.updates == 36 and (out.energy.diff(dim=0) <= 1e-10).all()
    assert torch.equal(out["s"].sign(), pattern)


def test_a_node_that_meets_itself_is_minimised_by_the_inner_solver_without_raising_the_energy():
    torch.manual_seed(0)
    g = unn.FactorGraph("self", n=5)
    s = g.variable("s", "n", unn.Entropy())
    W = g.parameter("W", "n m", init=torch.randn(5, 5))
    g.factor(Multilinear(W["i j"], s["i"], s["j"]))
    g.double()
    start = torch.rand(3, 5, dtype=torch.float64).softmax(1)
    out = unn.infer(g, {}, initial={"s": start}, order=["s"], iterations=5)
    energies = torch.cat([g.energy({"s": start})[None], out.energy])
    assert (energies.diff(dim=0) <= 1e-10).all() and (energies[-1] < energies[0]).all()


def test_an_order_can_name_a_block_of_nodes():
    g = grid(unn.SignedEntropy(), 0.5)
    corners = torch.zeros(3, 3, dtype=torch.bool)
    corners[::2, ::2] = True
    start = torch.rand(2, 3, 3, dtype=torch.float64)
    out = unn.infer(g, {}, initial={"s": start}, order=[unn.Block("s", corners)])
    assert torch.equal(out["s"][:, ~corners], start[:, ~corners])
    assert not torch.isclose(out["s"][:, corners], start[:, corners]).any()
    with pytest.raises(unn.InferenceError, match="interact"):
        unn.infer(g, {}, initial={"s": start}, order=[unn.Block("s", torch.ones(3, 3, dtype=torch.bool))])


def test_dropout_masks_are_held_over_all_iterations_as_part_of_the_energy():
    g = mlp()
    x = torch.randn(4, 6, dtype=torch.float64)
    m = (torch.rand(4, 5, dtype=torch.float64) > 0.3).double() / 0.7
    out = unn.infer(g, {"X": x}, order=["H", "Y"], iterations=4, dropout={"H": m})
    y = torch.zeros(4, 3, dtype=torch.float64)
    for _ in range(4):
        h = m * torch.tanh(x @ g.W.T + g.b + y @ g.V)
        y = torch.softmax(h @ g.V.T, 1)
    torch.testing.assert_close(out["Y"], y)
    finite = out.energy[1:]
    assert (finite.diff(dim=0) <= 1e-12).all()
    drawn = unn.infer(
        g,
        {"X": x},
        order=["H", "Y"],
        iterations=3,
        dropout={"H": 0.5},
        generator=torch.Generator().manual_seed(0),
    )
    assert (drawn["H"] == 0).any() and (drawn["H"] != 0).any()


@pytest.mark.parametrize("mask", [[0, 1, 1, 1], [0.5, 2, 1, 1], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("closed_form", [True, False])
def test_observed_entries_of_a_variable_are_not_dropped(mask, closed_form):
    g = unn.FactorGraph("g", n=4)
    x = g.variable("X", "n", unn.SquaredNorm())
    if closed_form:
        g.factor(Multilinear(x["i"], x["i+2"]))
    else:
        g.factor(Implicit(lambda x: (x.sum(1) - 5) ** 2, x["i"], bounded_below=True))
    g.double()
    seen = torch.tensor([[True, True, False, False]])
    given = {"X": unn.Partial(torch.tensor([[1.0, 2, 0, 0]], dtype=torch.float64), seen)}
    out = unn.infer(g, given, order=["X"], iterations=1, dropout={"X": torch.tensor([mask])})
    expected = [1.0, 2, 1, 2] if closed_form else [1.0, 2, 0.8, 0.8]
    torch.testing.assert_close(out["X"], torch.tensor([expected], dtype=torch.float64))
    assert bool(out.energy.isfinite().all())
    torch.testing.assert_close(out.energy[-1], g.energy(out.values))


def test_accelerated_results_have_no_derivatives():
    g = mlp()
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    for solver, has in (("rounds", True), ("anderson", False)):
        out = unn.infer(g, {"X": x}, order=["H", "Y"], until=1e-8, solver=solver)
        assert out["Y"].requires_grad == has


def test_infer_under_no_grad_keeps_no_autograd_memory():
    g = mlp()
    x = torch.randn(4, 6, dtype=torch.float64)
    saved = []
    with (
        torch.no_grad(),
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
    ):
        out = unn.infer(g, {"X": x}, order=["H", "Y"], iterations=5)
    assert not saved
    assert all(not t.requires_grad for t in (*out.values.values(), *out.preactivations.values(), out.energy))
    z = g.variable("Z", "hidden", unn.SquaredNorm())
    g.factor(Implicit(lambda z, h: ((z - h) ** 2).sum(1), z["i"], g["H"]["i"]))
    with torch.no_grad():
        out = unn.infer(g, {"X": x}, order=["H", "Y", "Z"], iterations=2)
    assert all(not t.requires_grad for t in (*out.values.values(), *out.preactivations.values(), out.energy))


def test_unrolled_gradients_are_exact():
    g = mlp()
    net = unn.Unrolled(g, "X", "Y", order=["H", "Y"], iterations=3)
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    names = ("W", "V", "b")

    def run(x, *parameters):
        return torch.func.functional_call(
            net, {f"declaration.{n}": p for n, p in zip(names, parameters, strict=True)}, (x,)
        )

    parameters = [getattr(g, n).detach().clone().requires_grad_() for n in names]
    assert torch.autograd.gradcheck(run, (x, *parameters))
    assert torch.autograd.gradgradcheck(run, (x, *parameters))


def test_unrolled_equals_infer_and_leaves_out_dead_updates(monkeypatch):
    from unn.descent.state import State

    g = mlp()
    x = torch.randn(2, 6, dtype=torch.float64)
    net = unn.Unrolled(g, "X", "H", order=["H", "Y"], iterations=3)
    run = []
    original = State.update
    monkeypatch.setattr(State, "update", lambda self, step: (run.append(step.name), original(self, step))[1])
    hidden = net(x)
    assert run == ["H", "Y", "H", "Y", "H"]
    torch.testing.assert_close(hidden, unn.infer(g, {"X": x}, order=["H", "Y"], iterations=3)["H"])


def test_unrolled_draws_iterations_and_dropout_in_training_only():
    g = mlp()
    net = unn.Unrolled(g, "X", "Y", order=["H", "Y"], iterations=range(1, 6), dropout={"H": 0.5})
    x = torch.randn(2, 6, dtype=torch.float64)
    net.eval()
    assert torch.equal(net(x), net(x))
    torch.testing.assert_close(net(x), unn.infer(g, {"X": x}, order=["H", "Y"], iterations=3)["Y"])
    net.train()
    assert len({tuple(net(x).flatten().tolist()) for _ in range(8)}) > 4


def test_unrolled_takes_several_inputs_and_returns_several_outputs():
    g = mlp()
    net = unn.Unrolled(g, ["X", "Y"], ["H"], order=["H"])
    x, y = torch.randn(3, 6, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    (h,) = net(x, y)
    torch.testing.assert_close(h, torch.tanh(x @ g.W.T + g.b + y @ g.V))
    assert sorted(n for n, _ in net.named_parameters()) == ["declaration.V", "declaration.W", "declaration.b"]


@pytest.mark.slow
@pytest.mark.parametrize("order", [["H", "Y"], unn.ForwardBackward(["H", "Y"])])
def test_fixed_schedules_compile_without_graph_breaks(order):
    torch._dynamo.reset()
    g = mlp(double=False)
    net = unn.Unrolled(g, "X", "Y", order=order, iterations=3)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for batch in (4, 7):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(compiled(x), net(x))
    compiled(torch.randn(4, 6)).square().sum().backward()
    assert g.W.grad is not None and g.W.grad.abs().sum() > 0


@pytest.mark.slow
def test_dropout_compiles_for_batches_of_any_size():
    torch._dynamo.reset()
    g = mlp(double=False)
    net = unn.Unrolled(g, "X", "Y", order=["H", "Y"], iterations=2, dropout={"H": 0.5})
    compiled = torch.compile(net, backend="eager")
    for batch in (4, 3, 7):
        assert compiled(torch.randn(batch, 6)).shape == (batch, 3)


# the compiler of torch itself reads the attribute where it resumes after planning
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.slow
def test_variables_that_interact_with_themselves_compile_once_their_sizes_are_planned():
    torch._dynamo.reset()
    g = unn.FactorGraph("chain")
    s, f = g.variable("S", "n", unn.SignedEntropy()), g.variable("F", "n", unn.SquaredNorm())
    g.factor(Multilinear(g.parameter("J", "", init=0.6)[""], s["i"], s["i+1"]))
    g.factor(Multilinear(s["i"], f["i"]))
    net = unn.Unrolled(g, "F", "S", order=["S"], iterations=2, initial={"S": "uniform"})
    broken, whole = torch.compile(net, backend="eager"), torch.compile(net, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="call the model once uncompiled"):
        whole(torch.randn(2, 3))
    for n in (4, 5):
        x = torch.randn(2, n)
        torch.testing.assert_close(broken(x), net(x))
        torch.testing.assert_close(whole(x), net(x))


@pytest.mark.slow
def test_convolutional_and_attention_networks_compile_without_graph_breaks():
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = unn.Unrolled(
        convolutional(8, 8, 4),
        "image",
        "label",
        order=unn.ForwardBackward(["H1", "H2", "label"]),
        iterations=2,
    )
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(images), net(images))
    g = words().float()
    net = unn.Unrolled(g, ["X", "P"], "S", order=["Q", "K", "H", "S"], iterations=2)
    x, p = torch.randn(2, 4, 3), torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x, p), net(x, p))


@pytest.mark.slow
def test_orders_of_blocks_compile_without_graph_breaks():
    torch._dynamo.reset()
    g = unn.FactorGraph("blocks", node=4, k=3)
    s, f = g.variable("S", "node", unn.SignedEntropy()), g.variable("F", "k", unn.SquaredNorm())
    g.factor(Multilinear(g.parameter("W", "node k", init=1.0)["n k"], s["n"], f["k"]))
    even = torch.tensor([True, False, True, False])
    net = unn.Unrolled(g, "F", "S", order=[unn.Block("S", even), unn.Block("S", ~even)], iterations=2)
    x = torch.randn(3, 3)
    for _ in range(2):
        torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), net(x))
        torch._dynamo.reset()


@pytest.mark.slow
def test_networks_on_edges_compile_without_graph_breaks():
    torch._dynamo.reset()
    g = unn.FactorGraph("edges", node=4, state=2)
    s, f = g.variable("S", "node | state", unn.Entropy()), g.variable("F", "node | state", unn.SquaredNorm())
    g.index("one", "edge", torch.tensor([0, 0, 1]), into="node")
    g.index("other", "edge", torch.tensor([1, 2, 3]), into="node")
    g.factor(Multilinear(g.parameter("J", "edge", init=1.0)["e"], s["one[e] v"], f["other[e] v"]))
    net, x = unn.Unrolled(g, "F", "S", order=["S"], iterations=2), torch.randn(3, 4, 2)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), net(x))


def test_directed_factors_run_forward_inside_an_undirected_graph():
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
    g = unn.FactorGraph("partly directed", x=4, hidden=5, label=3)
    X = g.variable("X", "x", unn.SquaredNorm())
    H = g.variable("H", "hidden", unn.NonNegative())
    Y = g.variable("Y", "label", unn.Entropy())
    V = g.parameter("V", "label hidden")
    g.factor(Directed(encoder, H, X))
    g.factor(Multilinear(Y["c"], V["c h"], H["h"]))
    x = torch.randn(3, 4)
    out = unn.infer(g, {"X": x}, order=["H", "Y"], iterations=1)
    torch.testing.assert_close(out["H"], encoder(x).relu())
    calls = []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    unn.infer(g, {"X": x}, order=["H", "Y"], iterations=6, trace=False)
    assert len(calls) == 1


def test_observed_messages_are_computed_once_for_all_iterations(monkeypatch):
    g = mlp()
    sent = []
    original = Multilinear.message
    monkeypatch.setattr(
        Multilinear,
        "message",
        lambda self, target, *rest: (sent.append((self.name, target)), original(self, target, *rest))[1],
    )
    unn.infer(g, {"X": torch.randn(2, 6, dtype=torch.float64)}, order=["H", "Y"], iterations=5, trace=False)
    counts = {key: sent.count(key) for key in sent}
    assert counts == {
        ("Multilinear(H, W, X)", "H"): 1,
        ("Multilinear(b, H)", "H"): 1,
        ("Multilinear(Y, V, H)", "H"): 4,
        ("Multilinear(Y, V, H)", "Y"): 5,
    }


def test_divergence_ends_with_a_status_and_finite_values():
    g = unn.FactorGraph("unbounded", n=2)
    A, B = (g.variable(name, "n", unn.SquaredNorm()) for name in "AB")
    g.factor(Multilinear(A["i"], B["i"], g.parameter("w", "", init=lambda t: t.fill_(3.0))[""]))
    out = unn.infer(g, {}, initial={"A": torch.ones(2, 2)}, order=["B", "A"], iterations=500)
    assert (
        out.status is unn.Status.UNBOUNDED
        and "depends on the weights" in out.message
        and "update" in out.message
    )
    assert all(x.isfinite().all() for x in out.values.values())
    with torch.no_grad():
        g.w.fill_(torch.nan)
    out = unn.infer(g, {}, initial={"A": torch.ones(2, 2)}, order=["B", "A"], iterations=5)
    assert out.status is unn.Status.NOT_A_NUMBER and "update 1 of round 1 (B)" in out.message
    assert all(x.isfinite().all() for x in (*out.values.values(), *out.preactivations.values()))


def test_an_unrolled_network_refuses_to_return_what_is_not_finite():
    g = mlp()
    net = unn.Unrolled(g, "X", "Y", order=["H", "Y"], iterations=2)
    x = torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        g.V[0, 0] = torch.nan
    for call in (net, net.preactivations):
        with pytest.raises(
            unn.DivergenceError, match="'Y' is NaN or infinite in 3 of 3 batch elements.*Parameter 'V'"
        ):
            call(x)
    assert unn.Unrolled(g, "X", "Y", order=["H", "Y"], check_values=False)(x).isnan().any()


def test_boundedness_is_told_before_running():
    assert convolutional().boundedness().bounded
    assert mlp().boundedness().bound is unn.Bound.BOUNDED
    g = unn.FactorGraph("attention", d=2)
    Q, K = (g.variable(name, "n d", unn.SquaredNorm()) for name in "QK")
    S = g.variable("S", "n m", unn.Entropy())
    g.factor(Multilinear(S["n m"], Q["n d"], K["m d"]))
    assert g.boundedness().bound is unn.Bound.UNBOUNDED
    assert "Bound one of K, Q" in str(g.boundedness())
    assert g.boundedness(given=["Q"]).bounded
    h = unn.FactorGraph("pair", d=2)
    A, B = (h.variable(name, "d", unn.SquaredNorm()) for name in "AB")
    h.factor(Multilinear(A["i"], h.parameter("w", "d e")["i j"], B["j"]))
    assert h.boundedness().bound is unn.Bound.DEPENDS
    h.factor(Implicit(lambda a: a.sum(1), A["i"]))
    assert h.boundedness().bound is unn.Bound.UNKNOWN


def test_a_message_whose_operands_have_not_changed_is_not_computed_again(monkeypatch):
    """H1, H2, label, H2 in each round: H2's message from H1 is computed once a round, not twice."""
    from factors import Conv2d

    sent = []
    original = Conv2d.message
    monkeypatch.setattr(
        Conv2d,
        "message",
        lambda self, target, *rest: (sent.append((self.weight, target)), original(self, target, *rest))[1],
    )
    images = torch.rand(2, 1, 8, 8)
    order = unn.ForwardBackward(["H1", "H2", "label"])
    unn.infer(convolutional(8, 8, 4), {"image": images}, order=order, iterations=3, trace=False)
    assert sent.count(("W1", "H1")) == 1 and sent.count(("W2", "H2")) == 3 and sent.count(("W2", "H1")) == 2
    sent.clear()
    unn.Unrolled(convolutional(8, 8, 4), "image", "label", order=order, iterations=3)(images)
    assert sent.count(("W1", "H1")) == 1 and sent.count(("W2", "H2")) == 3 and sent.count(("W2", "H1")) == 2


def test_unrolled_keeps_the_earlier_updates_of_a_variable_that_is_updated_by_blocks():
    g = mlp()
    x = torch.randn(2, 6, dtype=torch.float64)
    half = torch.tensor([True, True, False, False, False])
    blocks = [unn.Block("H", half), unn.Block("H", ~half), "Y"]
    net = unn.Unrolled(g, "X", "Y", order=blocks, iterations=2)
    torch.testing.assert_close(net(x), unn.infer(g, {"X": x}, order=["H", "Y"], iterations=2)["Y"])
    torch.testing.assert_close(net(x), unn.infer(g, {"X": x}, order=blocks, iterations=2)["Y"])


def test_graphs_and_networks_survive_pickling_and_copying():
    for g, given in (
        (convolutional(8, 8, 4), {"image": torch.rand(2, 1, 8, 8)}),
        (grid(unn.SignedEntropy(), 0.5).float(), {}),
    ):
        initial = {} if given else {"s": torch.rand(2, 3, 3)}
        before = unn.infer(g, given, initial=initial, iterations=2)
        for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g)):
            after = unn.infer(other, given, initial=initial, iterations=2)
            assert all(torch.equal(before[name], after[name]) for name in g.variables)
    net = unn.Unrolled(mlp(), "X", "Y", order=["H", "Y"], iterations=2)
    x = torch.randn(2, 6, dtype=torch.float64)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
