import pytest
import torch
from scipy import stats

from unn.noise import gumbel_argmax, uniform


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gumbel_argmax_draws_from_the_softmax(dim):
    logits = torch.tensor([-2.0, 0.0, 1.0, -torch.inf])
    shape = (4, 20_000) if dim == 0 else (20_000, 4)
    rows = (logits[:, None] if dim == 0 else logits).expand(shape)
    options = gumbel_argmax(rows, uniform(shape, rows, torch.Generator().manual_seed(0)), dim)
    counts = torch.bincount(options, minlength=4)
    assert counts.sum() == 20_000 and counts[3] == 0
    assert stats.chisquare(counts[:3], 20_000 * logits[:3].double().softmax(0)).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_noise_is_infinite(dtype):
    noise = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=dtype)
    # noise of 0 and 1 neither hides an option nor always chooses it
    assert gumbel_argmax(torch.tensor([[-1.0, 0.0]], dtype=dtype).expand(3, 2), noise).tolist() == [1, 1, 1]
    assert gumbel_argmax(torch.tensor([[1000.0, 0.0]], dtype=dtype).expand(3, 2), noise).tolist() == [0, 0, 0]
