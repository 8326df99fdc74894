"""Regularizers at the limits of number formats, and with anything in the padding."""

import pytest
import torch
import torch_struct

import unn
import unn.testing
from factors import Birkhoff, Budget, Structured, TreeEntropy

D = torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, D])
@pytest.mark.parametrize("temperature", [1e-30, 0.01, 0.3])
def test_low_temperatures_do_not_overflow_in_any_dtype(temperature, dtype):
    t = torch.tensor([[700.0, -700.0, 0.0], [6e4, 6e4, -6e4]], dtype=dtype)
    r = unn.Entropy(temperature)
    torch.testing.assert_close(r.mirror(t), torch.tensor([[1, 0, 0], [0.5, 0.5, 0]], dtype=dtype))
    assert r.conjugate(t).isfinite().all() and r.contains(r.sample(t)).all()


@pytest.mark.parametrize("radius", [1e-20, 1.0, 300.0, 1e20])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, D])
def test_the_projection_onto_a_ball_of_any_size_lies_in_it(radius, dtype):
    r = unn.Ball(radius)
    largest = torch.finfo(dtype).max
    for size in (1e-3, 1.0, 1e3):
        t = (
            size
            * min(radius, largest / 1e5)
            * torch.randn(4, 5, dtype=D, generator=torch.Generator().manual_seed(0))
        ).to(dtype)
        assert r.contains(r.mirror(t)).all() and not r.conjugate(t).isnan().any()
    outside = torch.full((1, 5), min(2 * radius, largest), dtype=dtype)
    assert bool(r.contains(outside)) == (float(outside.double().norm()) <= radius * (1 + 1e-2))


@pytest.mark.parametrize("alpha", [1 + 1e-12, 1 + 1e-6, 1.0001, 1.01, 1.09, 1.11, 1.5, 2.0])
def test_rows_of_entmax_sum_to_one_for_any_alpha_and_tend_to_softmax(alpha):
    r = unn.TsallisEntropy(alpha)
    for scale in (0.1, 3.0, 100.0):
        t = scale * torch.randn(20, 7, dtype=D, generator=torch.Generator().manual_seed(0))
        x = r.mirror(t)
        assert ((x.sum(-1) - 1).abs() <= 1e-12).all()
        # the gap to the largest score in units of 1, times the change of alpha, is that of the logarithms
        assert ((x - torch.softmax(t, -1)).abs() <= 100 * (alpha - 1)).all()
    t = 3 * torch.randn(2, 5, dtype=D, generator=torch.Generator().manual_seed(1))
    unn.testing.check_derivatives(r.mirror, [t])


@pytest.mark.parametrize("size", [1e4, 1e9, 1e12, 1e20, 1e30, 3e38])
@pytest.mark.parametrize(
    ("regularizer", "shape"),
    [(Budget(2), (6,)), (Birkhoff(), (4, 4)), (Birkhoff(0.05), (4, 4)), (TreeEntropy(), (4, 4))],
    ids=repr,
)
def test_the_mirror_of_finite_scores_of_any_size_lies_in_the_domain(regularizer, shape, size):
    signs = torch.randn(10, *shape, dtype=D, generator=torch.Generator().manual_seed(0))
    for t in (size * signs, size * signs.sign(), torch.where(signs < 0, -size, signs)):
        x = regularizer.mirror(t)
        assert regularizer.contains(x).all() and regularizer.conjugate(t).isfinite().all()


def test_soft_masks_of_any_size_give_the_same_balanced_matrix_as_forbidden_entries():
    t = torch.randn(5, 4, 4, dtype=D, generator=torch.Generator().manual_seed(0))
    masked = torch.eye(4, dtype=torch.bool).roll(1, 0)
    expected = Birkhoff().mirror(t.masked_fill(masked, -torch.inf))
    for mask in (-1e4, -1e9, -1e20, -1e30):
        torch.testing.assert_close(
            Birkhoff().mirror(t.masked_fill(masked, mask)), expected, atol=1e-12, rtol=0
        )


MASKED = [
    (unn.SquaredNorm(), (2, 5)),
    (unn.NonNegative(), (2, 5)),
    (unn.BinaryEntropy(), (2, 5)),
    (unn.SignedEntropy(), (2, 5)),
    (unn.Box(), (2, 5)),
    (unn.L1(), (2, 5)),
    (unn.Entropy(), (2, 5)),
    (unn.SimplexNorm(), (2, 5)),
    (unn.TsallisEntropy(), (2, 5)),
    (unn.Ball(), (2, 5)),
    (Budget(2), (2, 5)),
    (TreeEntropy(), (2, 5, 5)),
    (Birkhoff(), (2, 5, 5)),
    (Structured(torch_struct.DependencyCRF), (2, 5, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("regularizer", "shape"), MASKED, ids=repr)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 0.0, 1.0])
def test_whatever_stands_in_padding_changes_neither_values_nor_losses_nor_their_gradients(
    regularizer, shape, junk
):
    short = shape[:1] + tuple(size - 2 for size in shape[1:])
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[tuple(slice(0, size) for size in short)] = True
    scores = torch.randn(short, dtype=D, generator=torch.Generator().manual_seed(0))
    x, t = regularizer.mirror(scores), 0.5 * scores

    def filled(part):
        return torch.full(shape, junk, dtype=D).masked_scatter(mask, part).requires_grad_()

    wide_x, wide_t = filled(x), filled(t)
    torch.testing.assert_close(regularizer.value(wide_x, mask), regularizer.value(x), atol=1e-7, rtol=1e-7)
    loss = regularizer.loss(wide_t, wide_x.detach(), mask)
    torch.testing.assert_close(loss, regularizer.loss(t, x), atol=1e-7, rtol=1e-7)
    gradients = (
        torch.autograd.grad(loss.sum(), wide_t)[0],
        torch.autograd.grad(regularizer.value(wide_x, mask).sum(), wide_x)[0],
    )
    for gradient in gradients:
        assert gradient[mask].isfinite().all() and (gradient[~mask] == 0).all()


@pytest.mark.parametrize("regularizer", [unn.Entropy(), Budget(2), TreeEntropy()], ids=repr)
def test_the_loss_of_a_target_without_excluded_entries_is_its_surprise(regularizer):
    generator = torch.Generator().manual_seed(0)
    t = torch.randn(3, 4, 4, dtype=D, generator=generator)
    t[:, 0, 1] = t[:, 2, 3] = -torch.inf
    t.requires_grad_()
    # the most probable point, at a low temperature
    target = regularizer.mirror(1e6 * t.detach()).round()
    loss = regularizer.loss(t, target)
    scores = torch.where(target > 0, t, 0).flatten(1).sum(1)
    surprise = regularizer.conjugate(t).view(len(t), -1).sum(1) - scores
    torch.testing.assert_close(loss.view(len(t), -1).sum(1), surprise)
    (gradient,) = torch.autograd.grad(loss.sum(), t)
    torch.testing.assert_close(gradient, (regularizer.mirror(t) - target).detach())
    excluded = torch.zeros(3, 4, 4, dtype=D)
    excluded[:, 0, 1] = 1
    assert bool((regularizer.loss(t, excluded).view(3, -1).sum(1) == torch.inf).all())
