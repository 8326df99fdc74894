"""The regularizer of attention with a mask."""

import pytest
import torch
from support.helpers import says, unchanged
from support.undirected_attention import EXACT

import unn
from factors import MaskedEntropy
from unn.errors import DeclarationError
from unn.testing import RegularizerContract, domain_point


class TestMaskedEntropyWithoutMask(RegularizerContract):
    def regularizer(self):
        return MaskedEntropy()


class TestMaskedEntropy(RegularizerContract):
    """Two rows; each has two allowed entries or more among the first three."""

    full_dimensional = False
    allowed = torch.tensor([[True, False, True, True, False], [False, True, True, False, True]])

    def regularizer(self):
        return MaskedEntropy(1.5, allowed=self.allowed)

    def point(self, seed):
        return self.regularizer().mirror(self.noise(seed, 1.5))

    def test_padded_entries_count_for_nothing(self):
        r, short = self.regularizer(), MaskedEntropy(1.5, allowed=self.allowed[:, :3])
        mask, kept = self.padding()
        t = self.noise(5, 2.0)
        for padding in (0.0, 50.0, -1e4):
            filled = torch.where(mask, t, padding)
            x = r.mirror(filled, mask)
            torch.testing.assert_close(x[kept], short.mirror(t[kept]), **EXACT)
            assert (x[~mask] == 0).all() and r.contains(x, mask).all()
            torch.testing.assert_close(r.conjugate(filled, mask), short.conjugate(t[kept]), **EXACT)
            torch.testing.assert_close(
                r.value(torch.where(mask, x, padding), mask), short.value(x[kept]), **EXACT
            )

    def test_coupled_axes_are_named(self):
        r = MaskedEntropy(over="row", allowed=self.allowed).bind(("row", "entry"), "X")
        assert r.over_axes(("row", "entry")) == ("row",)
        t = self.noise(14, 1.0)
        expected = MaskedEntropy(allowed=self.allowed.T.contiguous()).mirror(t.mT).mT
        torch.testing.assert_close(r.mirror(t), expected, **EXACT)

    def test_forbidden_entries_are_zero_and_nothing_else_is_allowed(self):
        r = self.regularizer()
        x = r.mirror(self.noise(0, 3.0))
        assert (x[:, ~self.allowed] == 0).all() and (x[:, self.allowed] > 0).all()
        torch.testing.assert_close(
            x, torch.softmax((self.noise(0, 3.0) / 1.5).masked_fill(~self.allowed, -torch.inf), -1), **EXACT
        )
        x[1, 0, 1], x[1, 0, 0] = x[1, 0, 0].clone(), 0
        assert r.contains(x).tolist() == [True, False, True]
        assert r.value(x).isinf().tolist() == [False, True, False]

    def test_value_is_that_of_the_entropy_of_what_is_allowed(self):
        x = self.point(3)
        torch.testing.assert_close(self.regularizer().value(x), unn.Entropy(1.5).value(x), **EXACT)

    def test_bad_masks_are_refused(self):
        with pytest.raises(DeclarationError, match=says("boolean", "torch.int64")):
            MaskedEntropy(allowed=torch.ones(2, 2, dtype=torch.int64))
        g = unn.FactorGraph(n=3)
        unchanged(
            g, lambda: g.variable("S", "n", self.regularizer()), match=says("'S'", "(2, 5)", "first axes")
        )
        unchanged(g, lambda: g.variable("S", "n m", self.regularizer()), match=says("'S'", "'n'", "3", "2"))


class TestMaskedEntropyWithAnEmptyRow(TestMaskedEntropy):
    """Nothing is allowed in the second row."""

    allowed = torch.tensor([[True, True, False, True, True], [False] * 5])

    def test_value_is_infinite_outside_the_domain(self):
        r = self.regularizer()
        x = r.mirror(self.noise(0, 1.0))
        assert (x[:, 1] == 0).all()
        x[1, 1, 0] = torch.nan
        x[2, 1, 0] = 1
        assert r.value(x).isinf().tolist() == [False, True, True]
        assert r.contains(x).tolist() == [True, False, False]

    def test_value_is_that_of_the_entropy_of_what_is_allowed(self):
        x = self.point(3)
        torch.testing.assert_close(self.regularizer().value(x), unn.Entropy(1.5).value(x[:, :1]), **EXACT)

    def test_forbidden_entries_are_zero_and_nothing_else_is_allowed(self):
        x = self.regularizer().mirror(self.noise(0, 3.0))
        assert (x[:, ~self.allowed] == 0).all() and (x[:, self.allowed] > 0).all()


def test_points_of_the_domain_that_contracts_draw_are_zero_where_nothing_is_allowed():
    """Points that are off the mask by less than the tolerance of the domain have a lower energy."""
    allowed = torch.tensor([[False, True], [True, True], [False, False]])
    regularizer = MaskedEntropy(allowed=allowed).bind(("n", "m"), "S")
    x = domain_point(regularizer, (20, 3, 2), torch.Generator().manual_seed(0))
    assert (x[:, ~allowed] == 0).all() and (x[:, allowed] > 0).all()
    assert regularizer.contains(x).all()
