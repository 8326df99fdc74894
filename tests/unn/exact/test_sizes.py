"""Exact inference and belief propagation read the sizes of axes from evidence."""

import pytest
import torch
from support.helpers import says

import unn
from factors import Multilinear
from unn.errors import DeclarationError, ObservationError

MASK = torch.tensor([[True, False, True, False, False]])


def graph(*regularizers):
    """A chain of spins or of reals, or one of each, of any length."""
    g = unn.FactorGraph("open")
    variables = [g.variable(name, "node", r) for name, r in zip("xy", regularizers, strict=False)]
    w = g.constant("w", "", torch.tensor(0.4))
    for x in variables:
        g.factor(Multilinear(w[""], x["i"], x["i+1"]))
    if len(variables) > 1:
        g.factor(Multilinear(w[""], variables[0]["i"], variables[1]["i"]))
    return g


SPINS, REALS = unn.SignedEntropy(), unn.SquaredNorm()
QUERIES = {
    "marginals": (lambda g, given, **sizes: unn.exact.marginals(g, given, **sizes)["x"], (SPINS,)),
    "log-partition": (unn.exact.log_partition, (SPINS,)),
    "best values": (lambda g, given, **sizes: unn.exact.best_values(g, given, **sizes)["x"], (SPINS,)),
    "entropy": (unn.exact.entropy, (SPINS,)),
    "samples": (
        lambda g, given, **sizes: unn.exact.sample(
            g, 3, given, generator=torch.Generator().manual_seed(0), **sizes
        )["x"],
        (SPINS,),
    ),
    "cost": (lambda g, given, **sizes: unn.exact.cost(g, given, **sizes).bytes, (SPINS,)),
    "belief": (lambda g, given, **sizes: unn.belief.marginals(g, given, **sizes)["x"], (SPINS,)),
    "Gaussian": (lambda g, given, **sizes: unn.exact.gaussian_marginals(g, given, **sizes)["x"], (REALS,)),
    "mixed": (lambda g, given, **sizes: unn.exact.mixed_marginals(g, given, **sizes)["y"], (SPINS, REALS)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_sizes_are_those_of_the_evidence_by_default(name):
    query, regularizers = QUERIES[name]
    g, given = graph(*regularizers), {"x": unn.Partial(torch.ones(1, 5), MASK)}
    ours, expected = query(g, given), query(g, given, sizes={"node": 5})
    assert ours == expected if isinstance(ours, int) else torch.equal(ours, expected)
    # nothing is observed of the longer chain
    open_given = {"x": unn.Partial(torch.ones(1, 6), torch.zeros(1, 6, dtype=torch.bool))}
    ours, expected = query(g, open_given), query(g, {}, sizes={"node": 6})
    assert ours == expected if isinstance(ours, int) else torch.equal(ours, expected)


@pytest.mark.parametrize("name", QUERIES)
def test_sizes_are_those_of_given_constants_too(name):
    query, regularizers = QUERIES[name]
    g = graph(*regularizers)
    field = g.constant("field", "node")
    g.factor(Multilinear(field["i"], g["x"]["i"]))
    for value in (torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5)[None]):
        ours, expected = query(g, {"field": value}), query(g, {"field": value}, sizes={"node": 5})
        assert ours == expected if isinstance(ours, int) else torch.equal(ours, expected)


@pytest.mark.parametrize("name", QUERIES)
def test_sizes_that_contradict_the_evidence_or_are_nowhere_are_refused(name):
    query, regularizers = QUERIES[name]
    g, given = graph(*regularizers), {"x": unn.Partial(torch.ones(1, 5), MASK)}
    with pytest.raises((ObservationError, DeclarationError), match=says("'x'", "5", "4")):
        query(g, given, sizes={"node": 4})
    with pytest.raises(DeclarationError, match=says("'node'", "unknown", "sizes=")):
        query(g, {})
    with pytest.raises(DeclarationError, match=says("edge")):
        query(g, given, sizes={"edge": 4})


def test_variables_of_unlike_sizes_are_refused():
    g = graph(SPINS, SPINS)
    given = {"x": torch.ones(1, 5), "y": unn.Partial(torch.ones(1, 4), MASK[:, :4])}
    with pytest.raises(ObservationError, match=says("'x'", "5", "4")):
        unn.exact.marginals(g, given)
