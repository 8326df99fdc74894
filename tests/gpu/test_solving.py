"""The engines of constraint problems on the GPU: losses as on the CPU, training, verified answers."""

import copy

import pytest
import torch
from support.sudoku_graph import declare_sudoku

import unn

GRID = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])


def examples(count=8):
    generator = torch.Generator().manual_seed(0)
    names = torch.rand(count, 4, generator=generator).argsort(1)
    return torch.eye(4)[names[:, GRID]], torch.rand(count, 4, 4, generator=generator) < 0.5


def models():
    torch.manual_seed(0)
    graph = declare_sudoku(2, 2)
    recurrent = unn.RecurrentOptions(width=16, heads=2, recurrences=3, dropout=0.0, solving_steps=8)
    return {
        "solver": unn.Solver(graph, unn.SolverOptions(width=8, pool=8, noise=0.0, solving_steps=16), {}),
        "recurrent": unn.RecurrentModel(graph, recurrent, {}),
    }


@pytest.mark.parametrize("name", ["solver", "recurrent"])
def test_the_training_loss_and_its_gradients_are_those_of_the_cpu(name, device):
    model = models()[name].train()
    other = copy.deepcopy(model).to(device)
    X, given = examples()
    results = []
    # examples with random states fill the pool, and the GPU continues with the same ones
    model.loss({"X": X}, {"X": given})
    if isinstance(model, unn.Solver):
        other.load_training_state(model.training_state())
    for network, where in ((model, "cpu"), (other, device)):
        torch.manual_seed(0)
        loss = network.loss({"X": X.to(where)}, {"X": given.to(where)})
        gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        results.append([loss.detach().cpu(), *(g.cpu() for g in gradients if g is not None)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["solver", "recurrent"])
def test_answers_from_the_gpu_are_verified(name, device):
    model = models()[name].to(device).eval()
    X, given = examples()
    solutions = unn.solve(model, {"X": unn.Partial(X, given)}, options=unn.SolvingOptions(tries=4))
    for k in solutions.solved.nonzero()[:, 0].tolist():
        values = {"X": solutions["X"][k : k + 1]}
        assert not any(int(c.violations_of(values)) for c in model.graph.constraints)
        assert torch.equal(values["X"][0][given[k]], X[k][given[k]])


@pytest.mark.parametrize("name", ["solver", "recurrent"])
def test_training_on_the_gpu_lowers_the_loss(name, device):
    model = models()[name].to(device)

    def draw(count, generator):
        names = torch.rand(count, 4, generator=generator).argsort(1)
        return {"X": torch.eye(4)[names[:, GRID]]}

    def masks(count, generator):
        return {"X": torch.rand(count, 4, 4, generator=generator) < 0.6}

    result = unn.fit(model, draw, observed=masks, steps=60, batch=16, rate=0.01)
    assert float(result.losses[-10:].mean()) < float(result.losses[:10].mean())
