"""The contract of a regularizer."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

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
    """Tests that every regularizer must pass. Subclass it as ``class
    TestMine(RegularizerContract)`` with ``regularizer``.

    The class attributes state properties that are tested; the defaults are the strictest. A
    regularizer over structures overrides ``shape`` and ``padding``, with two structures for each of
    three batch elements.
    """

    shape: ClassVar[tuple[int, ...]] = (3, 2, 5)
    """Shape of a batch of values: three elements, two rows or structures, then the axes of one row
    or structure."""

    has_sample: ClassVar[bool] = True
    """False for regularizers that are not the entropy of an exponential family."""

    draws: ClassVar[int] = 20_000
    """Number of samples that are averaged."""

    examples: ClassVar[int] = 30
    """Number of random cases for the properties of ``value``; fewer if it is slow."""

    smooth_at_random_points: ClassVar[bool] = True
    """False to leave out the derivative checks."""

    full_dimensional: ClassVar[bool] = True
    """False if a single entry cannot move without leaving the domain; derivatives of ``value`` are
    then checked along it."""

    value_derivatives: ClassVar[int] = 2
    """Number of times ``value`` can be differentiated; 1 if it is computed by iterations that cannot."""

    accuracy: ClassVar[float] = 1e-9
    """Error of ``value`` in float64, relative to the compared terms; larger only if it is computed
    by iterations."""

    largest_score: ClassVar[float] = 1e4
    """Scores up to this size must give finite results in every dtype; lower for activations that overflow,
    such as 20 for exp."""

    contains_is_closed_form: ClassVar[bool] = True
    """False if ``contains`` iterates, which is slow outside the domain; such points are then not tested."""

    works_under_vmap: ClassVar[bool] = True
    """False if the algorithm branches on values; unsupported calls must then raise instead of
    giving wrong results."""

    compiles_whole: ClassVar[bool] = True
    """False if compilation needs graph breaks; results must still be equal."""

    @abstractmethod
    def regularizer(self) -> Regularizer:
        """The object under test; it must accept values of ``shape``."""

    def padding(self) -> tuple[Tensor, tuple[slice, ...]]:
        """A mask of ``shape`` that excludes two entries or a part of each structure, and the slices
        of the rest."""
        mask = torch.ones(self.shape, dtype=torch.bool)
        mask[..., self.shape[-1] - 2 :] = False
        return mask, (*[slice(None)] * (len(self.shape) - 1), slice(0, self.shape[-1] - 2))

    def noise(self, seed: int, scale: float) -> Tensor:
        """Random scores of ``shape``."""
        return scale * torch.randn(
            self.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )

    def point(self, seed: int) -> Tensor:
        """A random point of the domain, of ``shape``."""
        return domain_point(self.regularizer(), self.shape, torch.Generator().manual_seed(seed))

    def scores(self, seed: int, scale: float) -> Tensor:
        """Random scores of ``shape``, clamped to ``largest_score``."""
        return self.noise(seed, scale).clamp(-self.largest_score, self.largest_score)

    # -- the domain and the inequality of Fenchel and Young --------------------------------------------------

    def test_fenchel_young_inequality_holds_and_is_tight_at_the_mirror(self) -> None:
        r = self.regularizer()

        @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 5.0, 30.0]))
        @settings(max_examples=self.examples, deadline=None)
        def holds(seed: int, scale: float) -> None:
            t, x = self.scores(seed, scale), self.point(seed + 1)
            where = f"scores of scale {scale:g}, seed {seed}"
            gap, size = _gap(r, x, t)
            _holds(
                gap >= -self.accuracy * size,
                gap,
                f"{r!r}: value(x) + conjugate(t) - <x, t> is negative at a point x of the domain ({where})",
            )
            best = r.mirror(t)
            gap, size = _gap(r, best, t)
            hint = (
                "a constant of value or conjugate, or the mirror, is wrong; if value is found by iterations, "
                "set accuracy"
            )
            _holds(
                gap.abs() <= self.accuracy * size,
                gap,
                f"{r!r}: value(x) + conjugate(t) - <x, t> is not 0 at x = mirror(t) ({where}): {hint}",
            )
            gap = r.value_at_mirror(best, t) + r.conjugate(t) - batch_sum(best * t)
            _holds(
                gap.abs() <= 1e-9 * size,
                gap,
                f"{r!r}: value_at_mirror(x, t) + conjugate(t) - <x, t> is not 0 at x = mirror(t) ({where})",
            )

        holds()

    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 3.0, 1e3]))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirror_lies_in_the_domain(self, seed: int, scale: float) -> None:
        r = self.regularizer()
        x = r.mirror(self.scores(seed, scale))
        _holds(r.contains(x), x, f"{r!r}: contains() rejects mirror(t), for scores of scale {scale:g}")

    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 10.0]))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirrors_are_as_close_as_the_lipschitz_constant_says(self, seed: int, scale: float) -> None:
        r = self.regularizer()
        t, step = self.scores(seed, scale), self.noise(seed + 1, scale)
        for size in (1.0, 1e-3):
            moved = (r.mirror(t + size * step) - r.mirror(t)).flatten(1).norm(dim=1)
            limit = r.lipschitz * size * step.flatten(1).norm(dim=1)
            _holds(
                moved <= limit * (1 + 1e-9) + 1e-12,
                moved,
                f"{r!r}: mirror(t) moves further than lipschitz = {r.lipschitz:g} times the scores",
            )

    def test_mean_of_mirrors_lies_in_the_domain(self) -> None:
        r = self.regularizer()
        x = torch.stack([r.mirror(self.scores(k, 3.0)) for k in range(4)]).mean(0)
        _holds(
            r.contains(x), x, f"{r!r}: contains() rejects the mean of four mirrors, but a domain is convex"
        )

    def test_what_contains_accepts_has_a_finite_value_that_keeps_the_inequality_of_fenchel_and_young(
        self,
    ) -> None:
        r = self.regularizer()
        for what, x, outward in self._points_beyond_the_border() if self.contains_is_closed_form else ():
            accepted, value = r.contains(x), r.value(x)
            _holds(
                value.isfinite() == accepted,
                value,
                f"{r!r}: value() must be finite where contains() is True, and +inf elsewhere; {what}",
            )
            _holds(
                value.isfinite() | (value == torch.inf),
                value,
                f"{r!r}: outside its domain value() must be +inf; {what}",
            )
            for scale in (1.0, self.largest_score):
                # in this direction <x, t> exceeds its supremum over the domain by a part of the score
                t = scale * outward
                gap = value + r.conjugate(t) - batch_sum(x * t)
                bound = -1e-3 * (1 + scale) - self.accuracy * batch_sum((x * t).abs())
                why = (
                    f"{r!r}: contains() accepts points outside the domain, where value(x) + conjugate(t) < "
                    "<x, t>"
                )
                _holds(~accepted | (gap >= bound), gap, f"{why}; {what}, scores of scale {scale:g}")

    def test_bounded_domains_reject_what_is_far_away(self) -> None:
        r = self.regularizer()
        if r.bounded and self.contains_is_closed_form:
            for x in (self.point(0) + 1e12, self.point(0) - 1e12):
                why = (
                    f"{r!r}: bounded is True, but contains() accepts entries of size 1e12; set bounded = "
                    "False"
                )
                _holds(~r.contains(x), x, why)

    def _points_beyond_the_border(self) -> list[tuple[str, Tensor, Tensor]]:
        """Mirrors of large scores, moved further along the scores: outside of every domain that has a border
        there."""
        r = self.regularizer()
        single = torch.zeros(self.shape, dtype=torch.float64)
        single[..., 0] = 1.0
        noise = self.noise(20, 1.0)
        # where few examples are asked for, contains and value are slow
        directions = {"all entries larger": noise.abs()[:1]}
        if self.examples >= 10:
            directions |= {
                "all entries smaller": -noise.abs(),
                "one entry smaller": -single,
                "one entry larger": single,
            }
            directions |= {"some smaller and some larger": noise}
        points = []
        for what, outward in directions.items():
            border = r.mirror(min(100.0, self.largest_score) * outward)
            for step in (0.05, 0.5, 3.0) if self.examples >= 10 else (0.5,):
                points.append((f"{what} by {step:g} than at the border", border + step * outward, outward))
        return points

    @given(seed=st.integers(0, 10_000), offset=st.sampled_from([0.0, 0.0, 300.0, -300.0]))
    @settings(max_examples=20, deadline=None, suppress_health_check=_INHERITED)
    def test_mirror_is_the_gradient_of_the_conjugate(self, seed: int, offset: float) -> None:
        r = self.regularizer()
        # an offset reaches large scores where differences still count
        t = (self.noise(seed, 2.0) + offset).clamp(-self.largest_score, self.largest_score).requires_grad_()
        (gradient,) = torch.autograd.grad(r.conjugate(t).sum(), t)
        why = f"{r!r}: mirror(t) is not the gradient of conjugate(t), for scores around {offset:g}"
        _close(gradient, r.mirror(t.detach()), why, rtol=1e-9, atol=1e-10)

    def test_no_feasible_point_beats_the_mirror(self) -> None:
        r = self.regularizer()

        @given(seed=st.integers(0, 10_000))
        @settings(max_examples=min(20, self.examples), deadline=None)
        def holds(seed: int) -> None:
            t = self.scores(seed, 2.0)
            best = r.mirror(t)
            optimum = r.value(best) - batch_sum(best * t)
            for k, weight in enumerate((1.0, 0.1, 1e-3)):
                other = torch.lerp(best, self.point(3 * seed + k), weight)
                excess = r.value(other) - batch_sum(other * t) - optimum
                size = 1 + optimum.abs() + r.value(best).abs()
                _holds(
                    excess >= -self.accuracy * size,
                    excess,
                    f"{r!r}: a point of the domain has a lower value(x) - <x, t> than mirror(t)",
                )

        holds()

    def test_value_is_infinite_for_nan(self) -> None:
        r = self.regularizer()
        x = r.mirror(self.noise(0, 1.0))
        x[1].view(-1)[0] = torch.nan
        assert r.value(x)[1] == torch.inf, (
            f"{r!r}: value() of a batch element with a NaN is {r.value(x)[1].item()}, not +inf"
        )
        contained = r.contains(x).tolist()
        assert contained == [True, False, True], (
            f"{r!r}: contains() is {contained} where the second of three batch elements has a NaN"
        )

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_every_dtype_is_kept_and_agrees_with_float64(self, dtype: torch.dtype) -> None:
        r = self.regularizer()
        t = self.scores(3, 2.0).to(dtype)
        wide = t.double()
        slack = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        x, exact = r.mirror(t), r.mirror(wide)
        # values and conjugates are sums of terms of this size, which may cancel
        size = 1 + float(batch_sum((exact * wide).abs()).max())
        pairs = {
            "mirror": (x, exact, slack),
            "conjugate": (r.conjugate(t), r.conjugate(wide), slack * size),
            "value": (r.value(x), r.value(exact), slack * size),
        }
        for name, (ours, expected, atol) in pairs.items():
            assert ours.dtype == dtype, f"{r!r}: {name}() of {dtype} is {ours.dtype}"
            _close(
                ours.double(),
                expected,
                f"{r!r}: {name}() in {dtype} is not that in float64",
                rtol=slack,
                atol=atol,
            )
        _holds(r.contains(x), x, f"{r!r}: contains() rejects mirror(t) in {dtype}")

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_large_scores_stay_finite(self, dtype: torch.dtype) -> None:
        r = self.regularizer()
        t = self.scores(4, self.largest_score).to(dtype)
        x = r.mirror(t)
        hint = (
            f"for scores up to {self.largest_score:g} in {dtype}; if the activation has to overflow there, "
            "set largest_score"
        )
        for name, result in (("mirror", x), ("conjugate", r.conjugate(t)), ("value", r.value(x))):
            _holds(result.isfinite(), result, f"{r!r}: {name}() is not finite {hint}")

    def test_padded_entries_count_for_nothing(self) -> None:
        r = self.regularizer()
        mask, kept = self.padding()
        t = self.noise(5, 2.0)
        short = t[kept]
        for padding in (0.0, 50.0, -1e4):
            filled = t if padding == 0.0 else torch.where(mask, t, padding)
            padded = r.mirror(filled, mask)
            where = f"where the mask is False and scores are {padding:g} there"
            _close(
                padded[kept],
                r.mirror(short),
                f"{r!r}: mirror(t, mask) is not that of the entries that exist, {where}",
            )
            _holds(padded[~mask] == 0, padded[~mask], f"{r!r}: mirror(t, mask) is not 0 {where}")
            _close(
                r.conjugate(filled, mask),
                r.conjugate(short),
                f"{r!r}: conjugate(t, mask) is not that of the entries that exist, {where}",
            )
        slack = max(self.accuracy, 1e-7)
        why = f"{r!r}: value(x, mask) is not that of the entries that exist"
        _close(r.value(padded, mask), r.value(r.mirror(short)), why, atol=slack, rtol=slack)
        _holds(r.contains(padded, mask), padded, f"{r!r}: contains(mirror(t, mask), mask) is False")
        mixed = mask.clone()
        mixed[1] = True
        expected = torch.where(mixed, torch.cat([padded[:1], r.mirror(t)[1:2], padded[2:]]), 0)
        _close(
            r.mirror(t, mixed), expected, f"{r!r}: mirror(t, mask) mixes batch elements of different masks"
        )
        expected = torch.stack([r.conjugate(short)[0], r.conjugate(t)[1], r.conjugate(short)[2]])
        _close(
            r.conjugate(t, mixed),
            expected,
            f"{r!r}: conjugate(t, mask) mixes batch elements of different masks",
        )

    def test_rows_without_entries_are_zero_and_have_finite_gradients(self) -> None:
        r = self.regularizer()
        mask = torch.ones(self.shape, dtype=torch.bool)
        mask[1, 0] = False
        mask[2] = False
        t = self.scores(6, 2.0).requires_grad_()
        x = r.mirror(t, mask)
        empty = f"{r!r}: where no entry of a row exists,"
        assert (x[1, 0] == 0).all() and (x[2] == 0).all(), f"{empty} mirror(t, mask) is not 0"
        assert r.value(x, mask)[2] == 0, f"{empty} value(x, mask) is {r.value(x, mask)[2].item()}, not 0"
        assert r.conjugate(t, mask)[2] == 0, (
            f"{empty} conjugate(t, mask) is {r.conjugate(t, mask)[2].item()}, not 0"
        )
        _holds(r.contains(x, mask), x, f"{empty} contains(mirror(t, mask), mask) is False")
        (x.square().sum() + r.conjugate(t, mask).sum()).backward()
        assert t.grad is not None and t.grad.isfinite().all() and (t.grad[2] == 0).all(), (
            f"{empty} gradients are not finite, or not 0"
        )

    def test_batch_elements_do_not_interact(self) -> None:
        r = self.regularizer()
        t = self.noise(7, 2.0)
        slack = max(self.accuracy, 1e-7)
        for k in range(len(t)):
            alone = f"of batch element {k} is another one alone than in the batch"
            _close(r.mirror(t)[k : k + 1], r.mirror(t[k : k + 1]), f"{r!r}: mirror() {alone}")
            _close(r.conjugate(t)[k : k + 1], r.conjugate(t[k : k + 1]), f"{r!r}: conjugate() {alone}")
            _close(
                r.value(r.mirror(t))[k : k + 1],
                r.value(r.mirror(t[k : k + 1])),
                f"{r!r}: value() {alone}",
                atol=slack,
                rtol=slack,
            )

    def test_first_and_second_derivatives_of_mirror_and_conjugate_are_exact(self) -> None:
        if not self.smooth_at_random_points:
            return
        r = self.regularizer()
        t = self.scores(8, 1.5).requires_grad_()
        for function in (r.mirror, r.conjugate):
            why = f"{r!r}: derivatives of {function.__name__}() are not those of central differences"
            _differentiable(torch.autograd.gradcheck, function, t, why)
            _differentiable(torch.autograd.gradgradcheck, function, t, f"second {why}")
        mask, _ = self.padding()
        _differentiable(
            torch.autograd.gradcheck,
            lambda t: r.mirror(t, mask),
            t,
            f"{r!r}: derivatives of mirror(t, mask) are wrong",
        )

    @pytest.mark.parametrize("scale", [8.0, 60.0, 1000.0])
    def test_derivatives_are_exact_where_the_activation_saturates(self, scale: float) -> None:
        if not self.smooth_at_random_points:
            return
        r = self.regularizer()
        # entries of all sizes up to the scale, so that some lie on each side of any border
        t = self.scores(15, scale) * torch.rand(
            self.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        for function in (r.mirror, r.conjugate):
            why = (
                f"{r!r}: derivatives of {function.__name__}() at scores up to {scale:g} are not those of "
                "central differences"
            )
            _differentiable(torch.autograd.gradcheck, function, t.requires_grad_(), why, eps=1e-5)

    @pytest.mark.parametrize("scale", [1.5, 60.0])
    def test_forward_mode_derivatives_equal_those_of_reverse_mode_or_raise(self, scale: float) -> None:
        if not self.smooth_at_random_points:
            return
        r = self.regularizer()
        t, tangent = self.scores(16, scale), self.noise(17, 1.0)
        for function in (r.mirror, r.conjugate):
            try:
                with torch.autograd.forward_ad.dual_level():
                    result = function(torch.autograd.forward_ad.make_dual(t, tangent))
                    ours = torch.autograd.forward_ad.unpack_dual(result).tangent
            except (RuntimeError, NotImplementedError):
                # raising is allowed, a silently missing derivative is not
                continue
            leaf = t.clone().requires_grad_()
            result = function(leaf)
            weights = torch.randn(result.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(0))
            (gradient,) = torch.autograd.grad(result, leaf, weights)
            forward = torch.zeros(()).double() if ours is None else (weights * ours).sum()
            why = (
                f"{r!r}: the forward-mode derivative of {function.__name__}() at scores of scale {scale:g} "
                "is not that of reverse mode"
            )
            _close(forward, (gradient * tangent).sum(), why, rtol=1e-6, atol=1e-6)

    def test_first_and_second_derivatives_of_value_are_exact_inside_the_domain(self) -> None:
        r = self.regularizer()
        at = self.point(9).requires_grad_()
        corners = torch.stack([self.point(k) for k in range(90, 94)])

        def value(x: Tensor) -> Tensor:
            return r.value(x if self.full_dimensional else torch.tensordot(torch.softmax(x, 0), corners, 1))

        if not self.full_dimensional:
            at = torch.tensor([0.1, -0.3, 0.5, 0.2], dtype=torch.float64, requires_grad=True)
        if self.value_derivatives == 1:
            # iterative results are too inaccurate for small differences
            _differentiable(
                torch.autograd.gradcheck,
                value,
                at,
                f"{r!r}: derivatives of value() are wrong",
                eps=1e-3,
                atol=1e-4,
            )
            return
        hint = (
            "if a single entry cannot move inside the domain, set full_dimensional = False; if value is "
            "found by iterations, value_derivatives = 1"
        )
        _differentiable(
            torch.autograd.gradcheck,
            value,
            at,
            f"{r!r}: derivatives of value() are not those of central differences ({hint})",
        )
        _differentiable(
            torch.autograd.gradgradcheck,
            value,
            at,
            f"{r!r}: second derivatives of value() are wrong ({hint})",
        )

    def test_mirror_and_conjugate_work_under_vmap(self) -> None:
        r = self.regularizer()
        t = torch.stack([self.noise(k, 1.0) for k in range(4)])
        if not self.works_under_vmap:
            for function, at in (
                (r.mirror, t),
                (r.conjugate, t),
                (r.value, torch.stack([r.mirror(s) for s in t])),
            ):
                try:
                    together = torch.func.vmap(function)(at)
                except RuntimeError:
                    continue
                each = torch.stack([function(x) for x in at])
                _close(
                    together,
                    each,
                    f"{r!r}: {function.__name__}() under vmap neither raises nor equals single calls",
                )
            return
        x = torch.stack([r.mirror(s) for s in t])
        for function, at in ((r.mirror, t), (r.conjugate, t), (r.value, x)):
            why = f"{r!r}: {function.__name__}() under vmap"
            try:
                together = torch.func.vmap(function)(at)
            except RuntimeError as error:
                raise AssertionError(
                    f"{why} raises; set works_under_vmap = False if its steps depend on values. {error}"
                ) from error
            _close(together, torch.stack([function(row) for row in at]), f"{why} differs from single calls")

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
                # the compiler warns about other libraries
                warnings.simplefilter("ignore")
            try:
                results = compiled(t)
            except torch._dynamo.exc.Unsupported as error:
                why = (
                    f"{r!r}: torch.compile needs a graph break; set compiles_whole = False if that cannot be "
                    "helped"
                )
                raise AssertionError(f"{why}. {error}") from error
        slack = max(self.accuracy, 1e-7)
        for name, ours, expected in zip(
            ("mirror", "conjugate", "value", "contains"), results, everything(t), strict=True
        ):
            _close(ours, expected, f"{r!r}: {name}() differs when compiled", atol=slack, rtol=slack)

    def test_samples_lie_in_the_domain_and_average_to_the_mirror(self) -> None:
        r = self.regularizer()
        t = self.noise(11, 1.0)[:1]
        if not self.has_sample:
            with pytest.raises(UnnError, match="no sample"):
                r.sample(t)
            return
        many = t.expand(self.draws, *self.shape[1:])
        try:
            draws = r.sample(many, generator=torch.Generator().manual_seed(0))
        except UnnError as error:
            hint = "set has_sample = False if it is not the entropy of an exponential family"
            raise AssertionError(f"{r!r}: sample() raises; {hint}. {error}") from error
        every = draws[:: max(1, self.draws // 20_000)]
        _holds(r.contains(every), every, f"{r!r}: contains() rejects samples")
        distance = (draws.mean(0) - r.mirror(t)[0]).abs()
        spread = draws.std(0).clamp(min=1)
        _holds(
            distance < 5 * spread / self.draws**0.5,
            distance,
            f"{r!r}: the mean of {self.draws} samples is not mirror(t); differences",
        )
        again = r.sample(many, generator=torch.Generator().manual_seed(0))
        assert torch.equal(draws, again), f"{r!r}: samples with equal generators differ"

    def test_conditional_samples_lie_in_the_domain_and_have_the_mean_of_their_partition_function(
        self,
    ) -> None:
        r = self.regularizer()
        t = self.noise(21, 1.0)[:1]
        many = t.expand(self.draws, *self.shape[1:])
        for temperature in (1.0, 0.6, 2.5):
            generator = torch.Generator().manual_seed(0)
            try:
                draws = r.conditional_sample(many, temperature, None, generator)
            except UnnError:
                with pytest.raises(UnnError):
                    r.conditional_log_partition(t, temperature)
                return
            every = draws[:: max(1, self.draws // 20_000)]
            _holds(r.contains(every), every, f"{r!r}: contains() rejects conditional samples")
            leaf = t.clone().requires_grad_()
            (slope,) = torch.autograd.grad(r.conditional_log_partition(leaf, temperature).sum(), leaf)
            distance = (draws.mean(0) - temperature * slope[0]).abs()
            _holds(
                distance < 5 * draws.std(0).clamp(min=0.1) / self.draws**0.5,
                distance,
                f"{r!r}: the mean of {self.draws} conditional samples is not the temperature, "
                f"{temperature:g}, times the gradient of conditional_log_partition; differences",
            )

    def test_loss_is_zero_at_the_mirror_and_positive_elsewhere(self) -> None:
        r = self.regularizer()
        t, other = self.scores(12, 1.0), self.scores(13, 1.0)
        size = 1 + batch_sum((r.mirror(t) * t).abs())
        loss = r.loss(t, r.mirror(t))
        _holds(loss.abs() <= 100 * self.accuracy * size, loss, f"{r!r}: loss(t, mirror(t)) is not 0")
        loss = r.loss(t, r.mirror(other))
        _holds(loss > 0, loss, f"{r!r}: loss(t, x) is not positive away from x = mirror(t)")

    def test_coupled_axes_are_named(self) -> None:
        r = self.regularizer()
        axes = ("row", "entry")
        if isinstance(r, Elementwise):
            assert r.over_axes(axes) == (), f"{r!r}: over_axes() names axes, but its entries are independent"
        if isinstance(r, AlongAxis):
            assert r.bind(axes, "X").over_axes(axes) == ("entry",), (
                f"{r!r}: without over it does not act along the last axis"
            )
            unbound = copy.copy(r)
            unbound.over = "row"
            by_name = unbound.bind(axes, "X")
            t = self.noise(14, 1.0)
            _close(
                by_name.mirror(t.mT),
                r.mirror(t).mT,
                f"{r!r}: with over='row' it does not act along that axis",
            )


def _gap(r: Regularizer, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """value(x) + conjugate(t) - <x, t>, and the size of the terms that cancel in it; shape ``(batch,)``
    each."""
    value, conjugate = r.value(x), r.conjugate(t)
    size = 1 + batch_sum(t.abs()) + value.abs() + conjugate.abs() + batch_sum((x * t).abs())
    return value + conjugate - batch_sum(x * t), size


def _holds(condition: Tensor, values: Tensor, why: str) -> None:
    """Raise with the first index at which a condition fails and the value there."""
    if not bool(condition.all()):
        place = tuple(condition.logical_not().nonzero()[0].tolist())
        raise AssertionError(f"{why}. First at index {place}: {values[place].tolist()}")


def _close(
    ours: Tensor, expected: Tensor, why: str, rtol: float | None = None, atol: float | None = None
) -> None:
    torch.testing.assert_close(ours, expected, rtol=rtol, atol=atol, msg=lambda text: f"{why}.\n{text}")


def _differentiable(
    check: Callable[..., bool], function: Callable[[Tensor], Tensor], at: Tensor, why: str, **options: Any
) -> None:
    """Run a derivative check of torch along random directions; add the checked claim to its error."""
    try:
        check(function, (at,), fast_mode=True, **options)
    except RuntimeError as error:
        hint = "smooth_at_random_points = False leaves out derivatives"
        raise AssertionError(f"{why}; {hint}. {error}") from error
