"""The contract of a regularizer."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ..errors import UnnError
from ..regularizers import AlongAxis, Elementwise, Regularizer
from ..regularizers.base import batch_sum
from .strategies import domain_point

# one inherited test runs for many classes, each with its own regularizer
_INHERITED = (HealthCheck.differing_executors,)


class RegularizerContract(ABC):
    """Tests that every regularizer must pass. Subclass it as ``class TestMine(RegularizerContract)`` and give ``regularizer``.

    What the class attributes say is tested as they say it; their defaults ask for the most. A regularizer over structures gives ``shape`` and
    ``padding``: two structures for each of three batch elements.
    """

    shape: ClassVar[tuple[int, ...]] = (3, 2, 5)
    """Of a batch of values: three elements, two rows or structures, and what one of these consists of."""

    has_sample: ClassVar[bool] = True
    """False for regularizers that are not the entropy of an exponential family."""

    draws: ClassVar[int] = 20_000
    """How many samples are averaged."""

    examples: ClassVar[int] = 30
    """On how many random cases the properties of value are tried; fewer where it is slow."""

    smooth_at_random_points: ClassVar[bool] = True
    """False to leave out the derivative checks."""

    full_dimensional: ClassVar[bool] = True
    """False where a single entry cannot move without leaving the domain, however little: value's derivatives are then checked along the domain."""

    value_derivatives: ClassVar[int] = 2
    """How many times value can be differentiated; 1 where it is found by iterations that are not."""

    accuracy: ClassVar[float] = 1e-9
    """How exact value is in float64, relative to the scores; coarser only where it is found by iterations."""

    works_under_vmap: ClassVar[bool] = True
    """False where results are found by steps that depend on values: what does not work must then raise, and not return something else."""

    compiles_whole: ClassVar[bool] = True
    """False where the compiler must break the graph; results must then be the same all the same."""

    @abstractmethod
    def regularizer(self) -> Regularizer:
        """The object under test; it must accept values of ``shape``."""

    def padding(self) -> tuple[Tensor, tuple[slice, ...]]:
        """A mask of ``shape`` that leaves two entries, or a part of each structure, out; and the slices of a value that it leaves."""
        mask = torch.ones(self.shape, dtype=torch.bool)
        mask[..., self.shape[-1] - 2 :] = False
        return mask, (*[slice(None)] * (len(self.shape) - 1), slice(0, self.shape[-1] - 2))

    def noise(self, seed: int, scale: float) -> Tensor:
        """Scores of ``shape``."""
        return scale * torch.randn(self.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def point(self, seed: int) -> Tensor:
        """A random point of the domain, of ``shape``."""
        return domain_point(self.regularizer(), self.shape, torch.Generator().manual_seed(seed))

    def test_fenchel_young_inequality_holds_and_is_tight_at_the_mirror(self) -> None:
        r = self.regularizer()

        @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 5.0, 30.0]))
        @settings(max_examples=self.examples, deadline=None)
        def holds(seed: int, scale: float) -> None:
            t = self.noise(seed, scale)
            x = self.point(seed + 1)
            gap = r.value(x) + r.conjugate(t) - batch_sum(x * t)
            size = 1 + batch_sum(t.abs())
            assert (gap >= -self.accuracy * size).all()
            best = r.mirror(t)
            tight = r.value(best) + r.conjugate(t) - batch_sum(best * t)
            assert (tight.abs() <= self.accuracy * size).all()
            tight = r.value_at_mirror(best, t) + r.conjugate(t) - batch_sum(best * t)
            assert (tight.abs() <= 1e-9 * size).all()

        holds()

    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 3.0, 1e3]))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirror_lies_in_the_domain(self, seed: int, scale: float) -> None:
        r = self.regularizer()
        assert r.contains(r.mirror(self.noise(seed, scale))).all()

    @given(seed=st.integers(0, 10_000))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirror_is_the_gradient_of_the_conjugate(self, seed: int) -> None:
        r = self.regularizer()
        t = self.noise(seed, 2.0).requires_grad_()
        (gradient,) = torch.autograd.grad(r.conjugate(t).sum(), t)
        torch.testing.assert_close(gradient, r.mirror(t.detach()), rtol=1e-9, atol=1e-10)

    def test_no_feasible_point_beats_the_mirror(self) -> None:
        r = self.regularizer()

        @given(seed=st.integers(0, 10_000))
        @settings(max_examples=min(20, self.examples), deadline=None)
        def holds(seed: int) -> None:
            t = self.noise(seed, 2.0)
            best = r.mirror(t)
            optimum = r.value(best) - batch_sum(best * t)
            for k, weight in enumerate((1.0, 0.1, 1e-3)):
                other = torch.lerp(best, self.point(3 * seed + k), weight)
                assert (r.value(other) - batch_sum(other * t) >= optimum - self.accuracy * (1 + optimum.abs())).all()

        holds()

    def test_value_is_infinite_outside_the_domain(self) -> None:
        r = self.regularizer()
        x = r.mirror(self.noise(0, 1.0))
        x[1].view(-1)[0] = torch.nan
        assert r.value(x)[1] == torch.inf
        assert r.contains(x).tolist() == [True, False, True]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_every_dtype_is_kept_and_agrees_with_float64(self, dtype: torch.dtype) -> None:
        r = self.regularizer()
        t = self.noise(3, 2.0).to(dtype)
        wide = t.double()
        slack = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        for ours, exact in ((r.mirror(t), r.mirror(wide)), (r.conjugate(t), r.conjugate(wide)), (r.value(r.mirror(t)), r.value(r.mirror(wide)))):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours.double(), exact, rtol=slack, atol=slack)
        assert r.contains(r.mirror(t)).all()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_large_scores_stay_finite(self, dtype: torch.dtype) -> None:
        r = self.regularizer()
        t = self.noise(4, 1e4).to(dtype)
        assert r.mirror(t).isfinite().all()
        assert r.conjugate(t).isfinite().all()
        assert r.value(r.mirror(t)).isfinite().all()

    def test_padded_entries_count_for_nothing(self) -> None:
        r = self.regularizer()
        mask, kept = self.padding()
        t = self.noise(5, 2.0)
        short = t[kept]
        for padding in (0.0, 50.0, -1e4):
            filled = t if padding == 0.0 else torch.where(mask, t, padding)
            padded = r.mirror(filled, mask)
            torch.testing.assert_close(padded[kept], r.mirror(short))
            assert (padded[~mask] == 0).all()
            torch.testing.assert_close(r.conjugate(filled, mask), r.conjugate(short))
        slack = max(self.accuracy, 1e-7)
        torch.testing.assert_close(r.value(padded, mask), r.value(r.mirror(short)), atol=slack, rtol=slack)
        assert r.contains(padded, mask).all()
        mixed = mask.clone()
        mixed[1] = True
        torch.testing.assert_close(r.mirror(t, mixed), torch.where(mixed, torch.cat([padded[:1], r.mirror(t)[1:2], padded[2:]]), 0))
        torch.testing.assert_close(r.conjugate(t, mixed), torch.stack([r.conjugate(short)[0], r.conjugate(t)[1], r.conjugate(short)[2]]))

    def test_rows_without_entries_are_zero_and_have_finite_gradients(self) -> None:
        r = self.regularizer()
        mask = torch.ones(self.shape, dtype=torch.bool)
        mask[1, 0] = False
        mask[2] = False
        t = self.noise(6, 2.0).requires_grad_()
        x = r.mirror(t, mask)
        assert (x[1, 0] == 0).all() and (x[2] == 0).all()
        assert r.value(x, mask)[2] == 0 and r.conjugate(t, mask)[2] == 0
        assert r.contains(x, mask).all()
        (x.square().sum() + r.conjugate(t, mask).sum()).backward()
        assert t.grad is not None and t.grad.isfinite().all() and (t.grad[2] == 0).all()

    def test_batch_elements_do_not_interact(self) -> None:
        r = self.regularizer()
        t = self.noise(7, 2.0)
        slack = max(self.accuracy, 1e-7)
        for k in range(len(t)):
            torch.testing.assert_close(r.mirror(t)[k : k + 1], r.mirror(t[k : k + 1]))
            torch.testing.assert_close(r.conjugate(t)[k : k + 1], r.conjugate(t[k : k + 1]))
            torch.testing.assert_close(r.value(r.mirror(t))[k : k + 1], r.value(r.mirror(t[k : k + 1])), atol=slack, rtol=slack)

    def test_first_and_second_derivatives_of_mirror_and_conjugate_are_exact(self) -> None:
        if not self.smooth_at_random_points:
            return
        r = self.regularizer()
        t = self.noise(8, 1.5).requires_grad_()
        for function in (r.mirror, r.conjugate):
            assert torch.autograd.gradcheck(function, (t,), fast_mode=True)
            assert torch.autograd.gradgradcheck(function, (t,), fast_mode=True)
        mask, _ = self.padding()
        assert torch.autograd.gradcheck(lambda t: r.mirror(t, mask), (t,), fast_mode=True)

    def test_first_and_second_derivatives_of_value_are_exact_inside_the_domain(self) -> None:
        r = self.regularizer()
        at = self.point(9).requires_grad_()
        corners = torch.stack([self.point(k) for k in range(90, 94)])

        def value(x: Tensor) -> Tensor:
            return r.value(x if self.full_dimensional else torch.tensordot(torch.softmax(x, 0), corners, 1))

        if not self.full_dimensional:
            at = torch.tensor([0.1, -0.3, 0.5, 0.2], dtype=torch.float64, requires_grad=True)
        if self.value_derivatives == 1:
            # what is found by iterations is too rough for small differences
            assert torch.autograd.gradcheck(value, (at,), eps=1e-3, atol=1e-4)
            return
        assert torch.autograd.gradcheck(value, (at,), fast_mode=True)
        assert torch.autograd.gradgradcheck(value, (at,), fast_mode=True)

    def test_mirror_and_conjugate_work_under_vmap(self) -> None:
        r = self.regularizer()
        t = torch.stack([self.noise(k, 1.0) for k in range(4)])
        if not self.works_under_vmap:
            for function, at in ((r.mirror, t), (r.conjugate, t), (r.value, torch.stack([r.mirror(s) for s in t]))):
                try:
                    together = torch.func.vmap(function)(at)
                except RuntimeError:
                    continue
                torch.testing.assert_close(together, torch.stack([function(one) for one in at]))
            return
        torch.testing.assert_close(torch.func.vmap(r.mirror)(t), torch.stack([r.mirror(s) for s in t]))
        torch.testing.assert_close(torch.func.vmap(r.conjugate)(t), torch.stack([r.conjugate(s) for s in t]))
        torch.testing.assert_close(torch.func.vmap(r.value)(torch.func.vmap(r.mirror)(t)), torch.stack([r.value(r.mirror(s)) for s in t]))

    def test_everything_compiles_without_graph_breaks_where_it_can(self) -> None:
        r = self.regularizer()

        def everything(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            x = r.mirror(t)
            return x, r.conjugate(t), r.value(x), r.contains(x)

        t = self.noise(10, 1.0)
        torch._dynamo.reset()
        compiled = torch.compile(everything, fullgraph=self.compiles_whole, backend="eager")
        with warnings.catch_warnings():
            if not self.compiles_whole:
                # the compiler warns of what it meets in other libraries
                warnings.simplefilter("ignore")
            results = compiled(t)
        slack = max(self.accuracy, 1e-7)
        for ours, expected in zip(results, everything(t), strict=True):
            torch.testing.assert_close(ours, expected, atol=slack, rtol=slack)

    def test_samples_lie_in_the_domain_and_average_to_the_mirror(self) -> None:
        r = self.regularizer()
        t = self.noise(11, 1.0)[:1]
        if not self.has_sample:
            with pytest.raises(UnnError, match="no sample"):
                r.sample(t)
            return
        many = t.expand(self.draws, *self.shape[1:])
        draws = r.sample(many, generator=torch.Generator().manual_seed(0))
        assert r.contains(draws[:: max(1, self.draws // 20_000)]).all()
        error = (draws.mean(0) - r.mirror(t)[0]).abs().max()
        assert error < 5 / self.draws**0.5
        again = r.sample(many, generator=torch.Generator().manual_seed(0))
        assert torch.equal(draws, again)

    def test_loss_is_zero_at_the_mirror_and_positive_elsewhere(self) -> None:
        r = self.regularizer()
        t, other = self.noise(12, 1.0), self.noise(13, 1.0)
        torch.testing.assert_close(r.loss(t, r.mirror(t)), torch.zeros(len(t), dtype=t.dtype), atol=100 * self.accuracy, rtol=0)
        assert (r.loss(t, r.mirror(other)) > 0).all()

    def test_coupled_axes_are_named(self) -> None:
        r = self.regularizer()
        axes = ("row", "entry")
        if isinstance(r, Elementwise):
            assert r.over_axes(axes) == ()
        if isinstance(r, AlongAxis):
            assert r.bind(axes, "X").over_axes(axes) == ("entry",)
            by_name = type(r)(over="row").bind(axes, "X")
            t = self.noise(14, 1.0)
            torch.testing.assert_close(by_name.mirror(t), type(r)().mirror(t.mT).mT)
