"""Programs with plates of any size."""

import numpy as np
import pytest
import torch
from support.helpers import says

import unn
from unn.errors import ArgumentError, DeclarationError
from unn.programs import Normal, Poisson, Uniform, trace_plates


def regression(t, points, degree=1):
    w = t.sample("w", Normal(), degree + 1)
    x = t.sample("x", Uniform(-1.0, 1.0), points)
    t.sample("y", Normal(sum(w[k] * x**k for k in range(degree + 1)), 0.5))


def nested(t, groups, members):
    m = t.sample("m", Normal(), groups)
    t.sample("x", Normal(m[:, None], 1.0), (groups, members))


def test_the_graph_of_a_plate_at_a_size_is_that_of_the_program():
    plated = trace_plates(regression, {"points": (1, 9)}, degree=2)
    for points in (1, 2, 7):
        alone = unn.trace(regression, points, degree=2)
        assert plated.graph.adjacency(points=points).same_entries(alone.graph.adjacency())
        one, other = plated.draw(3, seed=0, points=points), alone.draw(3, seed=0)
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert plated.graph.variables["y"].axes == ("points",)
    (symmetry,) = plated.graph.symmetries(points=4)
    assert symmetry.size == 4


def test_several_plates_have_their_own_sizes():
    plated = trace_plates(nested, {"groups": (1, 4), "members": (2, 5)})
    assert plated.graph.variables["x"].axes == ("groups", "members")
    assert plated.draw(2, seed=0, groups=3, members=2)["x"].shape == (2, 3, 2)
    sizes = [plated.random_sizes(torch.Generator().manual_seed(k)) for k in range(60)]
    assert {s["groups"] for s in sizes} == {1, 2, 3, 4} and {s["members"] for s in sizes} == {2, 3, 4, 5}


def test_one_network_samples_plates_of_several_sizes():
    plated = trace_plates(nested, {"groups": (1, 4), "members": (2, 5)})
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(plated.graph, width=8, depth=1, heads=1))
    for sizes in ({"groups": 1, "members": 2}, {"groups": 4, "members": 3}):
        model.loss(
            plated.draw(4, seed=0, **sizes),
            torch.zeros(4, 1).bool().expand(4, sizes["groups"] * (1 + sizes["members"])),
            **sizes,
        ).backward()
        samples = model.sample(count=2, steps=1, seed=0, sizes=sizes)
        assert samples["x"].shape == (2, sizes["groups"], sizes["members"])


def test_chains_may_be_plates():
    def chain(t, steps):
        x = t.empty("x", steps)
        for i in range(steps):
            x[i] = t.sample(Normal(x[i - 1] if i else 0.0, 1.0))
        t.sample("n", Poisson(np.exp(x[...])))

    plated = trace_plates(chain, {"steps": (2, 30)})
    assert plated.graph.adjacency(steps=5).same_entries(unn.trace(chain, 5).graph.adjacency())
    assert not plated.graph.symmetries(steps=5)


def test_what_is_no_plate_is_refused_by_name():
    def odd(t, points):
        m = t.sample("m", Normal(), 3)
        t.sample("x", Normal(m[points % 3], 1.0), points)

    with pytest.raises(DeclarationError, match=says("points", "sizes of its plates")):
        trace_plates(odd, {"points": (1, 9)})
    with pytest.raises(DeclarationError, match=says("no variable has an axis", "'degree'")):
        trace_plates(lambda t, degree: t.sample("x", Normal(), 2), {"degree": (1, 3)})
    with pytest.raises(ArgumentError, match=says("'points'", "(0, 3)")):
        trace_plates(regression, {"points": (0, 3)})
    with pytest.raises(ArgumentError, match=says("needs a plate")):
        trace_plates(regression, {})
    plated = trace_plates(regression, {"points": (1, 9)})
    with pytest.raises(ArgumentError, match=says("'points'", "from 1 to 9", "12")):
        plated.at(points=12)
    with pytest.raises(ArgumentError, match=says("'pionts'", "points")):
        plated.at(pionts=2)


def test_several_variables_share_a_plate():
    def program(t, n):
        m = t.sample("m", Normal())
        t.sample("x", Normal(m, 1.0), n)
        t.sample("y", Normal(-m, 1.0), n)

    plated = trace_plates(program, {"n": (1, 6)})
    assert plated.graph.variables["x"].axes == plated.graph.variables["y"].axes == ("n",)
    alone = unn.trace(program, 4).graph
    assert plated.graph.adjacency(n=4).same_entries(alone.adjacency())
    assert len(plated.graph.symmetries(n=4)) == len(alone.symmetries())


def test_a_size_that_only_looks_like_a_plate_is_refused():
    def program(t, a, b):
        u = t.sample("u", Normal(), a)
        t.deterministic(t.sample("s", Normal(u.sum(), 1.0), a + 1).sum() * b, name="w")

    with pytest.raises(DeclarationError, match=says("plates")):
        trace_plates(program, {"a": (2, 8), "b": (2, 8)})


def test_programs_are_run_within_the_ranges_of_their_plates():
    places = np.array([0.0, 1.0, 2.0])

    def program(t, n):
        if not 1 <= n <= 3:
            raise ValueError("out of range")
        t.sample("y", Normal(t.sample("s", Normal()) * places[:n], 1.0))

    plated = trace_plates(program, {"n": (1, 3)})
    assert plated.graph.variables["y"].axes == ("n",) and not plated.graph.symmetries(n=3)

    def narrow(t, n):
        if n != 2:
            raise ValueError("out of range")
        t.sample("y", Normal(), n)

    with pytest.raises(DeclarationError, match=says("fails at n=", "ValueError", "out of range")):
        trace_plates(narrow, {"n": (2, 2)})


def test_two_axes_of_one_plate_in_a_variable_are_refused_where_nothing_ties_them():
    with pytest.raises(DeclarationError, match=says("do not determine all axes")):
        trace_plates(lambda t, n: t.sample("x", Normal(), (n, n)), {"n": (2, 9)})


def test_ranges_of_another_form_are_refused():
    with pytest.raises(ArgumentError, match=says("'points'", "5")):
        trace_plates(regression, {"points": 5})


@pytest.mark.parametrize("name", ["count", "seed", "values", "observed"])
def test_plates_are_not_named_as_arguments_beside_sizes(name):
    with pytest.raises(ArgumentError, match=says(repr(name), "rename it")):
        trace_plates(lambda t, **sizes: t.sample("x", Normal(), sizes[name]), {name: (1, 3)})


def test_sizes_that_are_missing_are_asked_for_by_the_argument_that_has_them():
    plated = trace_plates(lambda t, n: t.sample("x", Normal(t.sample("m", Normal()), 1.0), n), {"n": (1, 5)})
    model = unn.Diffusion(unn.Denoiser(plated.graph, width=8, depth=1, heads=1))
    with pytest.raises(unn.DeclarationError, match=r"sizes=\{'n': \.\.\.\}"):
        model.sample({}, 2)
