"""A graph with a variable of every kind, its values, and models with random or replaced networks."""

import torch

import unn
from factors import Clique, Depends
from unn.diffusion import Diffusion, LinearSteps
from unn.networks import Denoiser


def declared():
    """Real numbers and vectors, binary values and categories, four nodes each."""
    g = unn.FactorGraph("four", n=4, d=2, c=3)
    A, V = g.variable("A", "n", unn.SquaredNorm()), g.variable("V", "n | d", unn.SquaredNorm())
    B, K = g.variable("B", "n", unn.BinaryEntropy()), g.variable("K", "n | c", unn.Entropy())
    g.factor(Depends(A["i"], V["i p"], B["i"], K["i v"]))
    g.factor(Clique(A["i"]))
    return g


def values_of(batch, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return {
        "A": torch.randn(batch, 4, generator=generator, dtype=dtype),
        "V": torch.randn(batch, 4, 2, generator=generator, dtype=dtype),
        "B": torch.randint(2, (batch, 4), generator=generator).to(dtype),
        "K": torch.nn.functional.one_hot(torch.randint(3, (batch, 4), generator=generator), 3).to(dtype),
    }


def made(graph=None, seed=0, width=8, sizes=None, self_conditioning="none", prediction="x0", **options):
    """A model with random weights, in float64; of the paper's process, whose estimate is the output of the
    network, unless said otherwise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        denoiser = Denoiser(
            graph or declared(),
            width=width,
            heads=2,
            depth=2,
            self_conditioning=self_conditioning,
            sizes=sizes,
        )
        model = Diffusion(denoiser, prediction=prediction, **{"schedule": LinearSteps(), **options})
        for p in denoiser.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5)
    return model.double().eval()


def with_network(model, network):
    """The model with another function for its network, which is called with rows, level, observed, frame,
    memory."""

    def tokens(rows, level, observed, frame, memory=None, added=None):
        return network(rows, level, observed, frame, memory)

    model.denoiser.tokens, model.denoiser.estimate = tokens, lambda estimate, frame: estimate
    return model


def watched(model, look):
    """The model with its own network, and ``look`` called with each call's memory, tokens and estimate."""
    network, estimate = model.denoiser.tokens, model.denoiser.estimate

    def tokens(rows, level, observed, frame, memory=None, added=None):
        output = network(rows, level, observed, frame, memory, added)
        look(rows, memory, output, estimate(output, frame))
        return output

    model.denoiser.tokens = tokens
    return model


def violations(X):
    """How many rows, columns and blocks of 4 x 4 grids lack a digit, shape ``(count,)``."""
    blocks = X.view(-1, 2, 2, 2, 2, 4).transpose(2, 3).reshape(-1, 4, 4, 4)
    return sum((group.sum(2) != 1).flatten(1).sum(1) for group in (X, X.transpose(1, 2), blocks))


def alike(a, b):
    """The same samples, to the rounding of batches of another size."""
    return all(torch.allclose(a[name], b[name], atol=1e-5, rtol=1e-5) for name in a)


def train(model, batch, steps, rate=1e-2):
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        loss = model.loss(*batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def any_nodes(count, nodes):
    return torch.rand(count, nodes) < torch.rand(count, 1)


def extreme_samples(model, values, count=200):
    """Samples of a model whose weights make extreme estimates, standardised by values."""
    model.standardise(values)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.sample(count=count, steps=4, seed=0).values
