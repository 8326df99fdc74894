"""The contract of a regularizer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ..errors import UnnError
from ..regularizers import AlongAxis, Elementwise, Regularizer
from .strategies import domain_point

BATCH, ROWS, ENTRIES = 3, 2, 5

# one inherited test runs for many classes, each with its own regularizer
_INHERITED = (HealthCheck.differing_executors,)


class RegularizerContract(ABC):
    """Tests that every regularizer must pass. Subclass it as ``class TestMine(RegularizerContract)`` and give ``regularizer``."""

    has_sample = True
    """False for regularizers that are not the entropy of an exponential family."""

    smooth_at_random_points = True
    """False to leave out the derivative checks."""

    @abstractmethod
    def regularizer(self) -> Regularizer:
        """The object under test; it must accept values of shape ``(batch, rows, entries)``."""

    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 5.0, 30.0]))
    @settings(max_examples=30, deadline=None, suppress_health_check=_INHERITED)
    def test_fenchel_young_inequality_holds_and_is_tight_at_the_mirror(self, seed: int, scale: float) -> None:
        r = self.regularizer()
        t = _noise(seed, scale)
        x = domain_point(r, t.shape, torch.Generator().manual_seed(seed + 1))
        gap = r.value(x) + r.conjugate(t) - (x * t).sum((1, 2))
        size = 1 + t.abs().sum((1, 2))
        assert (gap >= -1e-9 * size).all()
        best = r.mirror(t)
        tight = r.value(best) + r.conjugate(t) - (best * t).sum((1, 2))
        assert (tight.abs() <= 1e-9 * size).all()

    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 3.0, 1e3]))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirror_lies_in_the_domain(self, seed: int, scale: float) -> None:
        r = self.regularizer()
        assert r.contains(r.mirror(_noise(seed, scale))).all()

    @given(seed=st.integers(0, 10_000))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirror_is_the_gradient_of_the_conjugate(self, seed: int) -> None:
        r = self.regularizer()
        t = _noise(seed, 2.0).requires_grad_()
        (gradient,) = torch.autograd.grad(r.conjugate(t).sum(), t)
        torch.testing.assert_close(gradient, r.mirror(t.detach()), rtol=1e-9, atol=1e-10)

    @given(seed=st.integers(0, 10_000))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_no_feasible_point_beats_the_mirror(self, seed: int) -> None:
        r = self.regularizer()
        t = _noise(seed, 2.0)
        best = r.mirror(t)
        optimum = r.value(best) - (best * t).sum((1, 2))
        generator = torch.Generator().manual_seed(seed)
        for weight in (1.0, 0.1, 1e-3):
            other = torch.lerp(best, domain_point(r, t.shape, generator), weight)
            assert (r.value(other) - (other * t).sum((1, 2)) >= optimum - 1e-9 * (1 + optimum.abs())).all()

    def test_value_is_infinite_outside_the_domain(self) -> None:
        r = self.regularizer()
        x = r.mirror(_noise(0, 1.0))
        x[1, 0, 0] = torch.nan
        assert r.value(x)[1] == torch.inf
        assert r.contains(x).tolist() == [True, False, True]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_every_dtype_is_kept_and_agrees_with_float64(self, dtype: torch.dtype) -> None:
        r = self.regularizer()
        t = _noise(3, 2.0).to(dtype)
        wide = t.double()
        slack = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        for ours, exact in ((r.mirror(t), r.mirror(wide)), (r.conjugate(t), r.conjugate(wide)), (r.value(r.mirror(t)), r.value(r.mirror(wide)))):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours.double(), exact, rtol=slack, atol=slack)
        assert r.contains(r.mirror(t)).all()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_large_scores_stay_finite(self, dtype: torch.dtype) -> None:
        r = self.regularizer()
        t = (_noise(4, 1e4)).to(dtype)
        assert r.mirror(t).isfinite().all()
        assert r.conjugate(t).isfinite().all()
        assert r.value(r.mirror(t)).isfinite().all()

    def test_padded_entries_count_for_nothing(self) -> None:
        r = self.regularizer()
        mask = torch.ones(BATCH, ROWS, ENTRIES, dtype=torch.bool)
        mask[..., ENTRIES - 2 :] = False
        t = _noise(5, 2.0)
        short = t[..., : ENTRIES - 2]
        padded = r.mirror(t, mask)
        torch.testing.assert_close(padded[..., : ENTRIES - 2], r.mirror(short))
        assert (padded[..., ENTRIES - 2 :] == 0).all()
        torch.testing.assert_close(r.conjugate(t, mask), r.conjugate(short))
        torch.testing.assert_close(r.value(padded, mask), r.value(r.mirror(short)))
        assert r.contains(padded, mask).all()

    def test_rows_without_entries_are_zero_and_have_finite_gradients(self) -> None:
        r = self.regularizer()
        mask = torch.ones(BATCH, ROWS, ENTRIES, dtype=torch.bool)
        mask[1, 0] = False
        mask[2] = False
        t = _noise(6, 2.0).requires_grad_()
        x = r.mirror(t, mask)
        assert (x[1, 0] == 0).all() and (x[2] == 0).all()
        assert r.value(x, mask)[2] == 0 and r.conjugate(t, mask)[2] == 0
        assert r.contains(x, mask).all()
        (x.square().sum() + r.conjugate(t, mask).sum()).backward()
        assert t.grad is not None and t.grad.isfinite().all() and (t.grad[2] == 0).all()

    def test_batch_elements_do_not_interact(self) -> None:
        r = self.regularizer()
        t = _noise(7, 2.0)
        for k in range(BATCH):
            torch.testing.assert_close(r.mirror(t)[k : k + 1], r.mirror(t[k : k + 1]))
            torch.testing.assert_close(r.conjugate(t)[k : k + 1], r.conjugate(t[k : k + 1]))
            torch.testing.assert_close(r.value(r.mirror(t))[k : k + 1], r.value(r.mirror(t[k : k + 1])))

    def test_first_and_second_derivatives_of_mirror_and_conjugate_are_exact(self) -> None:
        if not self.smooth_at_random_points:
            return
        r = self.regularizer()
        t = _noise(8, 1.5).requires_grad_()
        for function in (r.mirror, r.conjugate):
            assert torch.autograd.gradcheck(function, (t,))
            assert torch.autograd.gradgradcheck(function, (t,))

    def test_first_and_second_derivatives_of_value_are_exact_inside_the_domain(self) -> None:
        r = self.regularizer()
        inside = domain_point(r, (BATCH, ROWS, ENTRIES), torch.Generator().manual_seed(9)).requires_grad_()
        assert torch.autograd.gradcheck(r.value, (inside,))
        assert torch.autograd.gradgradcheck(r.value, (inside,))

    def test_mirror_and_conjugate_work_under_vmap(self) -> None:
        r = self.regularizer()
        t = torch.stack([_noise(k, 1.0) for k in range(4)])
        torch.testing.assert_close(torch.func.vmap(r.mirror)(t), torch.stack([r.mirror(s) for s in t]))
        torch.testing.assert_close(torch.func.vmap(r.conjugate)(t), torch.stack([r.conjugate(s) for s in t]))
        torch.testing.assert_close(torch.func.vmap(r.value)(torch.func.vmap(r.mirror)(t)), torch.stack([r.value(r.mirror(s)) for s in t]))

    def test_everything_compiles_without_graph_breaks(self) -> None:
        r = self.regularizer()

        def everything(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            x = r.mirror(t)
            return x, r.conjugate(t), r.value(x), r.contains(x)

        t = _noise(10, 1.0)
        torch._dynamo.reset()
        compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
        for ours, expected in zip(compiled(t), everything(t), strict=True):
            torch.testing.assert_close(ours, expected)

    def test_samples_lie_in_the_domain_and_average_to_the_mirror(self) -> None:
        r = self.regularizer()
        t = _noise(11, 1.0)[:1]
        if not self.has_sample:
            with pytest.raises(UnnError, match="no sample"):
                r.sample(t)
            return
        count = 20_000
        draws = r.sample(t.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
        assert r.contains(draws).all()
        error = (draws.mean(0) - r.mirror(t)[0]).abs().max()
        assert error < 5 / count**0.5
        again = r.sample(t.expand(count, -1, -1), generator=torch.Generator().manual_seed(0))
        assert torch.equal(draws, again)

    def test_loss_is_zero_at_the_mirror_and_positive_elsewhere(self) -> None:
        r = self.regularizer()
        t, other = _noise(12, 1.0), _noise(13, 1.0)
        torch.testing.assert_close(r.loss(t, r.mirror(t)), torch.zeros(BATCH, dtype=t.dtype), atol=1e-9, rtol=0)
        assert (r.loss(t, r.mirror(other)) > 0).all()

    def test_coupled_axes_are_named(self) -> None:
        r = self.regularizer()
        axes = ("row", "entry")
        if isinstance(r, Elementwise):
            assert r.over_axes(axes) == ()
        if isinstance(r, AlongAxis):
            assert r.bind(axes, "X").over_axes(axes) == ("entry",)
            by_name = type(r)(over="row").bind(axes, "X")
            t = _noise(14, 1.0)
            torch.testing.assert_close(by_name.mirror(t), type(r)().mirror(t.mT).mT)


def _noise(seed: int, scale: float) -> Tensor:
    return scale * torch.randn(BATCH, ROWS, ENTRIES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
