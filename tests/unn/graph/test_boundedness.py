"""The verdict on boundedness is never wrong: bounded energies stay above a bound, unbounded ones fall along
the ray that is shown."""

import math

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import unn
from factors import Budget, Conv2d, Directed, Implicit, Multilinear
from unn.graph.boundedness import Bound
from unn.testing.strategies import REGULARIZERS, domain_point

D = torch.float64
ALL = (*REGULARIZERS, lambda: unn.Ball(0.1), lambda: unn.Box(0.0, 0.3), lambda: Budget(1))
OPEN = (unn.SquaredNorm, unn.NonNegative, lambda: unn.L1(0.3), unn.Entropy, unn.Ball)
WEIGHTS = ("none", "constant", "negative", "small", "parameter", "runtime")


class Exp(torch.nn.Module):
    def forward(self, x):
        return x.exp()


def linear(weight):
    module = torch.nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(weight)
    return module


def squares(names, axes="n", **sizes):
    g = unn.FactorGraph("squares", **(sizes or {"n": 1}))
    return g, [g.variable(name, axes, unn.SquaredNorm()) for name in names]


def lowest(g, fixed, free, batch, seed):
    """The lowest energy met from random starts of growing scale, by descent and along the way there."""
    generator = torch.Generator().manual_seed(seed)
    energies = []
    for scale in (1.0, 1e6):
        start = {}
        for name in free:
            regularizer = g.variables[name].regularizer
            x = domain_point(
                regularizer, (batch, *g.size_table.shape(g.variables[name], g.size_table.static)), generator
            )
            start[name] = x if regularizer.bounded else scale * x
        energies.append(g.energy({**fixed, **start}).min().item())
        out = unn.infer(g, fixed, initial=start, order=list(free), iterations=8)
        assert out.status is not unn.Status.UNBOUNDED, out.message
        energies.append(out.energy.min().item())
    return min(energies)


@st.composite
def problems(draw, regularizers=ALL):
    """Graphs with products of degree 1 to 4 of all kinds of weights, squashed and linear modules, cosines,
    and what is observed."""
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    g = unn.FactorGraph("random", a=draw(st.integers(1, 3)), b=draw(st.integers(1, 2)))
    variables = []
    for k in range(draw(st.integers(1, 4))):
        axes = draw(st.sampled_from(["a", "b", "a b"]))
        variables.append(g.variable(f"x{k}", axes, draw(st.sampled_from(regularizers))()))
    runtime = {}
    for k in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["product", "product", "product", "directed", "cosine"]))
        chosen = [draw(st.sampled_from(variables)) for _ in range(draw(st.integers(1, 3)))]
        if kind == "directed" and len(set(chosen)) > 1:
            child, parent = chosen[0], next(v for v in chosen if v != chosen[0])
            sizes = [math.prod(g.sizes[axis] for axis in v.axes) for v in (parent, child)]
            last = draw(st.sampled_from([torch.nn.Tanh, torch.nn.Identity]))()
            whole = torch.nn.Unflatten(1, tuple(g.sizes[axis] for axis in child.axes))
            module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(*sizes), last, whole)
            g.factor(Directed(module, child, parent, name=f"directed{k}"))
            continue
        if kind == "cosine":
            g.factor(
                Implicit(
                    lambda x: torch.cos(x).flatten(1).sum(1),
                    chosen[0][" ".join(chosen[0].axes)],
                    bounded_below=True,
                )
            )
            continue
        references = [v[" ".join(v.axes)] for v in chosen]
        letters = sorted({letter for r in references for letter in r.letters})
        weight = draw(st.sampled_from(WEIGHTS))
        value = torch.randn([g.sizes[axis] for axis in letters], generator=generator)
        if weight == "parameter":
            references.append(g.parameter(f"w{k}", " ".join(letters), init=value)[" ".join(letters)])
        elif weight == "runtime":
            references.append(g.constant(f"w{k}", " ".join(letters))[" ".join(letters)])
            runtime[f"w{k}"] = value.double()
        elif weight != "none":
            value = {"constant": value, "negative": -value.abs(), "small": 0.05 * value}[weight]
            references.append(g.constant(f"w{k}", " ".join(letters), value)[" ".join(letters)])
        g.factor(Multilinear(*references))
    g.double()
    names = list(g.variables)
    observed = draw(st.permutations(names))[: draw(st.integers(0, len(names) - 1))]
    fixed = dict(runtime)
    for name in observed:
        shape = g.size_table.shape(g.variables[name], g.size_table.static)
        fixed[name] = domain_point(g.variables[name].regularizer, (2, *shape), generator)
    return g, fixed, [name for name in names if name not in observed], seed


@pytest.mark.slow
@given(problems())
@settings(max_examples=30, deadline=None)
def test_energies_that_are_called_bounded_stay_above_a_bound(problem):
    g, fixed, free, seed = problem
    assume(g.boundedness(given=list(fixed)).bounded is True)
    # weights and observations are of order one, so that a bound of this size exists; a fall from 1e6 passes
    # it
    assert lowest(g, fixed, free, 2, seed) > -1e5


@given(problems(OPEN))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_energies_that_are_called_unbounded_fall_along_the_ray_that_is_shown(problem):
    g, fixed, free, _ = problem
    verdict = g.boundedness(given=list(fixed))
    assume(verdict.bounded is False)
    assert verdict.ray is not None and not verdict.ray.sizes
    energies = []
    for t in (1e3, 1e5, 1e7, 1e9):
        values = verdict.ray.at(t)
        assert all(g.variables[name].regularizer.contains(values[name]).all() for name in free)
        own = {name: x.expand(2, *x.shape[1:]) for name, x in values.items()}
        energies.append(g.energy({**fixed, **own}).max().item())
    assert energies[-1] < energies[-2] < energies[-3] and energies[-1] < -1e9


@given(problems())
@settings(max_examples=50, deadline=None)
def test_every_verdict_has_a_reason_and_names_what_it_is_about(problem):
    g, fixed, free, _ = problem
    verdict = g.boundedness(given=list(fixed))
    assert verdict.bounded is {"bounded below": True, "unbounded below": False}.get(verdict.bound.value)
    assert verdict.reasons and all(reason in str(verdict) for reason in verdict.reasons)
    assert (verdict.ray is not None) == (verdict.bounded is False)
    assert verdict.bounded or (
        verdict.unbounded and all(set(names) <= set(free) for names in verdict.unbounded.values())
    )


@pytest.mark.parametrize("module", [Exp(), linear(5.0)])
@pytest.mark.parametrize("second", ["directed", "product", "bias", "parent and bias"])
def test_a_child_that_meets_a_second_factor_is_not_called_bounded(module, second):
    g, (A, B, Y, Z) = squares("ABYZ")
    g.factor(Directed(module, Y, A))
    assert g.boundedness().bounded is True
    if second == "directed":
        g.factor(Directed(linear(5.0), Y, B))
    elif second == "product":
        g.factor(Multilinear(B["i"], Y["i"]))
    elif second == "bias":
        g.factor(Multilinear(g.constant("c", "n", torch.ones(1))["i"], Y["i"]))
    else:
        g.factor(Directed(linear(1.0), Z, Y))
        g.factor(Multilinear(g.constant("c", "n", torch.ones(1))["i"], Z["i"]))
    verdict = g.boundedness()
    assert verdict.bounded is None and "regularizer of Y" in str(verdict) and "shared" in str(verdict)


def test_two_directed_factors_with_one_child_fall_as_the_verdict_allows():
    g, (A, B, Y) = squares("ABY")
    g.factor(Directed(linear(5.0), Y, A))
    g.factor(Directed(linear(5.0), Y, B))
    g.double()
    one = torch.ones(1, 1, dtype=D)
    assert g.energy({"A": one * 200, "B": one * 200, "Y": one * 1500}).item() == pytest.approx(-835000)
    assert g.boundedness().bounded is None
    assert g.boundedness(given=["Y"]).bounded is True and g.boundedness(given=["A", "B"]).bounded is True


def test_a_chain_of_directed_factors_is_bounded_whatever_the_modules_are():
    g, (A, B, Y) = squares("ABY")
    g.factor(Directed(Exp(), B, A))
    g.factor(Directed(Exp(), Y, B))
    assert g.boundedness().bounded is True


def attention(regularizer, **sizes):
    g = unn.FactorGraph("attention", d=3, **sizes)
    Q, K = g.variable("Q", "n d", unn.SquaredNorm()), g.variable("K", "m d", unn.SquaredNorm())
    S = g.variable("S", "n m", regularizer)
    g.factor(Multilinear(S["n m"], Q["n d"], K["m d"]))
    return g


@pytest.mark.parametrize(
    ("regularizer", "sizes", "bounded"),
    [
        (unn.Ball(0.1), {"n": 4, "m": 4}, True),
        (unn.Ball(0.1), {"n": 400, "m": 1}, False),
        (unn.Ball(0.1), {}, None),
        (unn.Ball(2.0), {}, False),
        (unn.Entropy(), {"n": 1, "m": 1}, True),
        (unn.Entropy(), {"n": 2, "m": 1}, False),
        (unn.Entropy(), {}, False),
        (unn.Box(-0.1, 0.1), {"n": 3, "m": 3}, True),
        (unn.BinaryEntropy(), {"n": 3, "m": 3}, False),
    ],
)
def test_weightless_couplings_are_judged_by_the_size_of_the_domain(regularizer, sizes, bounded):
    assert attention(regularizer, **sizes).boundedness().bounded is bounded


def test_a_coupling_of_norm_one_is_bounded_alone_but_not_with_a_linear_term():
    g = attention(unn.Entropy(), n=1, m=1)
    g.factor(Multilinear(g.constant("b", "d", torch.ones(3))["d"], g["K"]["m d"]))
    assert g.boundedness().bounded is not True
    t = torch.full((1, 1, 3), 1e6, dtype=D)
    assert g.double().energy({"Q": t, "K": t, "S": torch.ones(1, 1, 1, dtype=D)}).item() < -1e6


@pytest.mark.parametrize(("weight", "bounded"), [(-1.0, True), (0.0, True), (1.0, False)])
@pytest.mark.parametrize("regularizer", [unn.NonNegative, unn.SquaredNorm])
def test_constants_count_with_their_signs_where_domains_have_one(weight, bounded, regularizer):
    g = unn.FactorGraph("signs", n=3)
    A, B, C = (g.variable(name, "n", regularizer()) for name in "ABC")
    g.factor(Multilinear(g.constant("w", "", torch.tensor(weight))[""], A["i"], B["i"], C["i"]))
    expected = bounded if regularizer is unn.NonNegative else weight == 0
    assert g.boundedness().bounded is expected


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9, 1.1, 3.0, -0.9, -1.1])
def test_constant_couplings_of_degree_two_are_bounded_below_a_norm_of_one(weight):
    g, (A, B) = squares("AB", n=3)
    matrix = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0] * weight
    g.factor(Multilinear(g.constant("w", "n m", matrix)["i j"], A["i"], B["j"]))
    assert g.boundedness().bounded is (abs(weight) < 1)


def test_couplings_that_are_small_one_by_one_and_large_together_are_unbounded():
    g, (A, B, C) = squares("ABC")
    for k, (one, other) in enumerate(((A, B), (A, C))):
        g.factor(Multilinear(g.constant(f"w{k}", "", torch.tensor(0.8))[""], one["i"], other["i"]))
    assert g.boundedness().bounded is False
    assert g.boundedness(given=["B"]).bounded is True


def test_what_depends_on_parameters_says_so_or_holds_for_their_present_values():
    g, (A, B, C) = squares("ABC", n=2)
    w = g.parameter("w", "n m", init=0.1)
    g.factor(Multilinear(w["i j"], A["i"], B["j"]))
    assert g.boundedness().bound is unn.Bound.DEPENDS and g.boundedness().bounded is None
    v = g.parameter("v", "n", init="zeros")
    g.factor(Multilinear(v["i"], A["i"], B["i"], C["i"]))
    assert g.boundedness().bounded is None
    with torch.no_grad():
        g.v.fill_(1.0)
    verdict = g.boundedness()
    assert (
        verdict.bounded is False
        and verdict.ray.parameters == ("w", "v")
        and "present values of w, v" in str(verdict)
    )


def test_an_energy_of_unknown_growth_makes_the_verdict_unknown_even_where_a_product_falls():
    g, (A, B, C) = squares("ABC")
    g.factor(Multilinear(A["i"], B["i"], C["i"]))
    assert g.boundedness().bounded is False
    g.factor(
        Implicit(
            lambda a, b, c: a.pow(4).sum(1) + b.pow(4).sum(1) + c.pow(4).sum(1),
            *(v["i"] for v in (A, B, C)),
            bounded_below=True,
        )
    )
    assert g.boundedness().bound is unn.Bound.UNKNOWN


def test_a_regularizer_of_unknown_growth_makes_the_verdict_unknown():
    class Steep(unn.SquaredNorm):
        def entry_value(self, x):
            return x.pow(4) / 4

    g = unn.FactorGraph("steep", n=1)
    A, B = g.variable("A", "n", Steep()), g.variable("B", "n", Steep())
    g.factor(Multilinear(g.constant("w", "", torch.tensor(5.0))[""], A["i"], B["i"]))
    assert g.boundedness().bound is unn.Bound.UNKNOWN


def test_a_constant_kernel_is_unbounded_where_a_ray_shows_it():
    for scale, bounded in ((5.0, False), (0.01, None)):
        g = unn.FactorGraph("conv", c=1, r=4, k=2)
        X, H = g.variable("X", "c r r", unn.SquaredNorm()), g.variable("H", "c i j", unn.SquaredNorm())
        g.factor(Conv2d(H, g.constant("w", "c c k k", scale * torch.ones(1, 1, 2, 2)), X))
        assert g.boundedness().bounded is bounded


@pytest.mark.parametrize("names", ["X", "Yes", 3, None])
def test_what_is_given_is_a_collection_of_names_and_not_a_text(names):
    g, _ = squares("XY")
    with pytest.raises(unn.ArgumentError, match=r"given=\['X'\]"):
        g.boundedness(names)


@given(
    numbers=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8),
    coupling=st.floats(0.01, 1.0),
    features=st.booleans(),
)
@settings(deadline=None)
def test_entries_that_an_index_gathers_several_times_count_as_often(numbers, coupling, features):
    g = unn.FactorGraph("edges", n=4, e=len(numbers), f=2)
    x = g.variable("x", "n f" if features else "n", unn.SquaredNorm())
    for name, ends in zip(("src", "dst"), zip(*numbers, strict=True), strict=True):
        g.index(name, "e", list(ends), into="n")
    rest = " f" if features else ""
    w = g.constant("w", "", torch.tensor(coupling, dtype=D))
    g.factor(Multilinear(w[""], x["src[e]" + rest], x["dst[e]" + rest]))
    g.double()
    matrix = torch.autograd.functional.hessian(
        lambda y: g.energy({"x": y.view(1, *((4, 2) if features else (4,)))})[0],
        torch.zeros(8 if features else 4, dtype=D),
    )
    least = float(torch.linalg.eigvalsh(matrix)[0])
    if g.boundedness().bound is Bound.BOUNDED:
        assert least > -1e-9
    # a coupling is small enough at some size
    if coupling * len(numbers) < 0.4:
        assert g.boundedness().bound is Bound.BOUNDED
