"""Programs that use randomness of their own."""

import random

import numpy as np
import pytest
import torch
from support.helpers import says

import unn
from unn.programs import Normal, Uniform


def branch_by(coin):
    def program(t):
        x = t.sample("x", Normal())
        t.sample("y", Normal(x if coin() else -x, 1))

    return program


OWN_RANDOMNESS = {
    "python": branch_by(lambda: random.random() < 0.5),
    "numpy": branch_by(lambda: np.random.rand() < 0.5),
    "torch": branch_by(lambda: torch.rand(()) < 0.5),
    "unseeded constants": lambda t: t.sample(
        "y", Normal(t.sample("x", Normal()) * np.random.default_rng().normal(), 1)
    ),
    "a loop": lambda t: t.sample("x", Normal(), 1 + np.random.poisson(5)),
    "a function": lambda t: t.deterministic(
        random.choice([np.exp, np.tanh, np.sin, np.cos])(t.sample("x", Normal())), name="y"
    ),
    "a distribution": lambda t: t.sample(
        "x", random.choice([Normal(0, 1), Uniform(0, 1), Normal(1, 1), Normal(0, 2)])
    ),
    "a name": lambda t: t.sample(f"x{random.randrange(1000)}", Normal()),
    "an index": lambda t: t.deterministic(t.sample("x", Normal(), 100)[random.randrange(100)], name="y"),
}


@pytest.mark.parametrize("name", OWN_RANDOMNESS)
@pytest.mark.parametrize("seed", range(3))
def test_a_program_that_decides_by_random_numbers_of_its_own_is_refused_with_its_line(name, seed):
    program = OWN_RANDOMNESS[name]
    line = program.__code__.co_firstlineno + (2 if "coin" in program.__code__.co_freevars else 0)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with pytest.raises(
        unn.DeclarationError, match=says("program", "two runs", f"line {line} ", "t.sample", "default_rng")
    ):
        unn.trace(program)


def test_a_program_may_use_random_numbers_with_a_fixed_seed_and_leaves_the_generators_as_one_run_does():
    def program(t, weights):
        np.random.seed(5)
        noise = np.random.default_rng(0).normal(size=3)
        t.sample("y", Normal(weights * noise * np.random.rand() * t.sample("x", Normal(), 3), 1))
        random.random()
        torch.rand(3)

    def after(run):
        random.seed(1)
        torch.manual_seed(1)
        run()
        return random.random(), np.random.rand(), torch.rand(()).item()

    weights = np.random.default_rng(1).normal(size=3)
    expected = after(lambda: (np.random.seed(5), np.random.rand(), random.random(), torch.rand(3)))
    assert after(lambda: unn.trace(program, weights)) == expected


def test_an_iterator_that_the_first_run_uses_up_is_refused():
    numbers = iter([1.0, 2.0])
    with pytest.raises(unn.DeclarationError, match=says("two runs", "iterator", "list")):
        unn.trace(lambda t: t.sample("x", Normal(sum(numbers), 1)))
