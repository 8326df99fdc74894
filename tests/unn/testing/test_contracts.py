"""The contract suites catch wrong regularizers and factors, accept right ones, and say what failed."""

import inspect

import pytest
import torch

import unn
from factors import Directed, Multilinear
from unn.extending import SharedMessages
from unn.regularizers import Elementwise
from unn.testing import FactorContract, RegularizerContract


def failures(contract):
    """The messages of the tests of a contract that fail, by name."""
    messages = {}
    for name, test in inspect.getmembers(contract, inspect.ismethod):
        if not name.startswith("test_"):
            continue
        cases = [mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for arguments in [(case,) for case in cases[0]] if cases else [()]:
            try:
                test(*arguments)
            except (AssertionError, RuntimeError) as error:
                messages[name] = str(error)
    return messages


def regularizer_contract(make, **attributes):
    class Contract(RegularizerContract):
        examples = 10
        draws = 2000

        def regularizer(self):
            return make()

        # the compiler is slow, and none of the objects here is wrong in it
        def test_everything_compiles_without_graph_breaks_where_it_can(self):
            pass

    for name, value in attributes.items():
        setattr(Contract, name, value)
    return Contract()


def factor_contract(make):
    class Contract(FactorContract):
        def graph(self):
            return make()

    return Contract()


# -- wrong regularizers --------------------------------------------------------------------------------------


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, low, high):
        return t.clamp(low, high)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class StraightThroughBox(unn.Box):
    def entry_mirror(self, t):
        return StraightThrough.apply(t, self.low, self.high)


class SilentTangent(torch.autograd.Function):
    @staticmethod
    def forward(t):
        return t.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)

    @staticmethod
    def jvp(ctx, tangent):
        return torch.zeros_like(tangent)


class NoTangent(unn.SignedEntropy):
    def entry_mirror(self, t):
        return SilentTangent.apply(t)


class AcceptsNegatives(unn.NonNegative):
    def interval(self):
        return -torch.inf, torch.inf

    def entry_contains(self, x, tolerance):
        return x.isfinite()


class FiniteOutside(unn.NonNegative):
    """contains() is right, value() is not."""

    def value(self, x, mask=None):
        return super().value(x.clamp(min=0), mask)


class AcceptsAll(unn.SimplexNorm):
    def contains(self, x, mask=None):
        return x.isfinite().flatten(1).all(1)


class AcceptsEveryScale(unn.Entropy):
    """Rows need not sum to one."""

    def contains(self, x, mask=None):
        return (x >= -1e-5).flatten(1).all(1)


class AcceptsOutsideOfTheBall(unn.Ball):
    def contains(self, x, mask=None):
        return (x.abs() <= self.radius).flatten(1).all(1)


class BoundedByName(unn.SquaredNorm):
    bounded = True


class RejectsTheInside(unn.Entropy):
    def contains(self, x, mask=None):
        return super().contains(x, mask) & (x.amax(-1) > 0.999).flatten(1).all(1)


class OffByAConstant(unn.Entropy):
    def row_conjugate(self, t):
        return super().row_conjugate(t) + 1e-6


class OtherForLargeScores(unn.Entropy):
    def row_mirror(self, t):
        return super().row_mirror(torch.where(t > 100, t / 1.001, t))


SATURATION = "test_derivatives_are_exact_where_the_activation_saturates"
DOMAIN = "test_what_contains_accepts_has_a_finite_value_that_keeps_the_inequality_of_fenchel_and_young"

WRONG_REGULARIZERS = {
    "a gradient that passes through saturation, near": (lambda: StraightThroughBox(-5, 5), SATURATION),
    "a gradient that passes through saturation, far": (lambda: StraightThroughBox(-8, 8), SATURATION),
    "a gradient that passes through saturation, very far": (
        lambda: StraightThroughBox(-300, 200),
        SATURATION,
    ),
    "a tangent of zero": (NoTangent, "test_forward_mode_derivatives_equal_those_of_reverse_mode_or_raise"),
    "a domain without its border": (AcceptsNegatives, DOMAIN),
    "a finite value outside": (FiniteOutside, DOMAIN),
    "a simplex that holds everything": (AcceptsAll, DOMAIN),
    "a simplex without its sum": (AcceptsEveryScale, DOMAIN),
    "a ball with corners": (AcceptsOutsideOfTheBall, DOMAIN),
    "a space called bounded": (BoundedByName, "test_bounded_domains_reject_what_is_far_away"),
    "a domain that is not convex": (RejectsTheInside, "test_mean_of_mirrors_lies_in_the_domain"),
    "a wrong constant": (OffByAConstant, "test_fenchel_young_inequality_holds_and_is_tight_at_the_mirror"),
    "another mirror for large scores": (OtherForLargeScores, "test_mirror_is_the_gradient_of_the_conjugate"),
}


@pytest.mark.parametrize("what", WRONG_REGULARIZERS)
def test_a_regularizer_is_caught_that_has(what):
    make, test = WRONG_REGULARIZERS[what]
    messages = failures(
        regularizer_contract(
            make, has_sample=make().__class__.__mro__[1] in (unn.Entropy, unn.SignedEntropy, unn.SquaredNorm)
        )
    )
    assert test in messages, messages
    assert repr(make()) in messages[test]


# -- right regularizers --------------------------------------------------------------------------------------


class Exponential(Elementwise):
    """Psi(x) = x log x - x for x >= 0: the activation exp. Samples are Poisson."""

    formula = "sum x log x - x, x >= 0"
    activation = "exp"

    def interval(self):
        return 0.0, torch.inf

    def entry_value(self, x):
        return torch.special.xlogy(x, x) - x

    def entry_conjugate(self, t):
        return t.exp()

    def entry_mirror(self, t):
        return t.exp()

    def entry_contains(self, x, tolerance):
        return (x >= -tolerance) & x.isfinite()

    def sample(self, t, mask=None, generator=None):
        x = torch.poisson(t.exp(), generator=generator)
        return x if mask is None else torch.where(mask, x, 0)


class TestExponential(RegularizerContract):
    largest_score = 20

    def regularizer(self):
        return Exponential()


class TestBoxAwayFromZero(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.Box(2, 3)


class TestWideBox(RegularizerContract):
    has_sample = False

    def regularizer(self):
        return unn.Box(-8, 8)


def test_a_failure_says_which_attribute_is_to_be_set():
    messages = failures(regularizer_contract(Exponential))
    assert set(messages) >= {"test_large_scores_stay_finite"}
    assert "largest_score" in messages["test_large_scores_stay_finite"]
    messages = failures(regularizer_contract(unn.NonNegative))
    assert set(messages) == {"test_samples_lie_in_the_domain_and_average_to_the_mirror"}
    assert "has_sample = False" in messages["test_samples_lie_in_the_domain_and_average_to_the_mirror"]


def test_a_failure_says_at_which_entry():
    class Shifted(unn.SquaredNorm):
        def entry_mirror(self, t):
            return t + 0.01

    messages = failures(regularizer_contract(Shifted))
    message = messages["test_fenchel_young_inequality_holds_and_is_tight_at_the_mirror"]
    assert ("mirror(t)" in message and "index (0,)" in message and "5e-05" in message) or "0.0005" in message


# -- wrong factors -------------------------------------------------------------------------------------------


def pair(make, regularizers=(unn.SquaredNorm, unn.SignedEntropy)):
    def graph():
        g = unn.FactorGraph("pair", n=4)
        A, B = (
            g.variable(name, "n", regularizer()) for name, regularizer in zip("AB", regularizers, strict=True)
        )
        g.factor(make(A["i"], B["i"]))
        return g

    return graph


def three(make):
    def graph():
        torch.manual_seed(0)
        g = unn.FactorGraph("three", i=3, n=4, m=4)
        P, H, M = (
            g.variable("P", "i", unn.BinaryEntropy()),
            g.variable("H", "i n", unn.SquaredNorm()),
            g.variable("M", "i m", unn.SignedEntropy()),
        )
        g.factor(make(P["i"], H["i x"], g.parameter("W", "n m", init=1.0)["x y"], M["i y"]))
        return g

    return graph


class MeanOverLength(Multilinear):
    """Divides by the length, padding included."""

    def energy(self, values):
        return super().energy(values) / values[self.operands[0]].shape[1]

    def message(self, target, values, shape=None):
        return super().message(target, values, shape) / values[target].shape[1]


class DegreeZero(Multilinear):
    def degree(self, names):
        return 0


class CubeOfDegreeTwo(unn.EnergyFactor):
    def energy(self, values):
        x, y = (values[name] for name in self.operands)
        return (x.pow(3) + y).sum(1)

    def degree(self, names):
        return 2 * bool({"A", "B"} & set(names))


class NotFresh(SharedMessages):
    """E = -<a, b>, whose messages are the operands themselves."""

    multilinear = True
    fresh_messages = True

    def energy(self, values):
        x, y = (values[name] for name in self.operands)
        return -(x * y).sum(1)

    def message(self, target, values, shape=None):
        (other,) = (name for name in self.operands if name != target)
        return values[other]

    def affine_in(self, target):
        return True


class Cached(NotFresh):
    """Returns one tensor twice."""

    def message(self, target, values, shape=None):
        x = super().message(target, values, shape)
        cache = self.__dict__.setdefault("cache", {})
        if cache.get(target, (None,))[0] is not x:
            cache[target] = x, x * 1.0
        return cache[target][1]


class SharingOfTheWrongSign(Multilinear):
    def message_sharing(self, target, values, shape, products):
        shared = super().message_sharing(target, values, shape, products)
        return -shared if target == "M" else shared


class SharingWhatIsOutOfDate(Multilinear):
    def message_sharing(self, target, values, shape, products):
        for key, (_, product) in list(products.items()):
            products[key] = values["H"], product
        return super().message_sharing(target, values, shape, products)


class AlignedForAll(Multilinear):
    def row_aligned(self, target, source, count):
        return True


class WrongRows(Multilinear):
    def message_rows(self, target, values, rows):
        part = super().message_rows(target, values, rows)
        return None if part is None else part.flip(0)


class Transposed(Multilinear):
    """A' where A belongs."""

    def message(self, target, values, shape=None):
        other = {**values, "W": values["W"].mT} if target == "H" else values
        return super().message(target, other, shape)


class OfTheWrongSign(NotFresh):
    fresh_messages = False

    def message(self, target, values, shape=None):
        return -super().message(target, values, shape)


class Shifted(NotFresh):
    fresh_messages = False

    def message(self, target, values, shape=None):
        return 5 + super().message(target, values, shape)


class InfiniteAtTheBorder(unn.EnergyFactor):
    def energy(self, values):
        x, y = (values[name] for name in self.operands)
        return -torch.log1p(-y).sum(1) + x.sum(1)


class NeedsASquare(Directed):
    """Completed by the parent, which bounds nothing."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.completed_by = "A"


def directed(kind):
    def graph():
        torch.manual_seed(0)
        g = unn.FactorGraph("directed", n=3)
        A, B = (g.variable(name, "n", unn.SquaredNorm()) for name in "AB")
        g.factor(kind(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Softplus()), B, A))
        return g

    return graph


WRONG_FACTORS = {
    "an energy that depends on the padded length": (
        pair(MeanOverLength),
        "test_padding_leaves_energy_and_messages_as_they_are",
    ),
    "a degree of zero, though bilinear": (pair(DegreeZero), "test_energy_falls_no_faster_than_its_degree"),
    "a degree of zero, though bilinear on bounded domains": (
        pair(DegreeZero, (unn.Ball, unn.SignedEntropy)),
        "test_energy_falls_no_faster_than_its_degree",
    ),
    "a degree of two, though cubic": (pair(CubeOfDegreeTwo), "test_energy_falls_no_faster_than_its_degree"),
    "a message called fresh that is an operand": (
        pair(NotFresh),
        "test_fresh_messages_are_tensors_of_their_own",
    ),
    "a message called fresh that is kept": (pair(Cached), "test_fresh_messages_are_tensors_of_their_own"),
    "shared products of the wrong sign": (
        three(SharingOfTheWrongSign),
        "test_messages_that_share_products_equal_the_others",
    ),
    "shared products of the wrong sign, in a run": (
        three(SharingOfTheWrongSign),
        "test_the_trace_of_a_run_is_the_energy_of_its_values",
    ),
    "shared products that are out of date": (
        three(SharingWhatIsOutOfDate),
        "test_messages_that_share_products_equal_the_others",
    ),
    "rows called aligned that are not": (
        three(AlignedForAll),
        "test_aligned_rows_depend_on_the_same_row_alone",
    ),
    "messages to the wrong rows": (three(WrongRows), "test_messages_to_some_rows_are_rows_of_the_message"),
    "a transposed weight in a message": (
        three(Transposed),
        "test_message_is_minus_the_gradient_of_the_energy",
    ),
    "messages of the wrong sign": (
        pair(OfTheWrongSign),
        "test_exact_updates_reach_the_minimum_over_their_variable",
    ),
    "updates that raise the energy": (pair(Shifted), "test_no_update_raises_the_energy"),
    "an infinite energy at a border": (
        pair(InfiniteAtTheBorder),
        "test_energy_is_finite_at_the_borders_of_the_domains",
    ),
    "a variable that does not complete it": (
        directed(NeedsASquare),
        "test_the_regularizer_that_completes_a_factor_makes_it_bounded_below",
    ),
}


@pytest.mark.parametrize("what", WRONG_FACTORS)
def test_a_factor_is_caught_that_has(what):
    make, test = WRONG_FACTORS[what]
    messages = failures(factor_contract(make))
    assert test in messages, messages
    assert any(name in messages[test] for name in make().factors) or "graph.energy" in messages[test]


@pytest.mark.parametrize("make", [pair(Multilinear), three(Multilinear), directed(Directed)])
def test_the_same_factors_without_their_mistakes_are_accepted(make):
    assert failures(factor_contract(make)) == {}
