"""Orders and numbers of rounds of the engine of coordinate descent."""

import pytest
import torch

import unn
from factors import Multilinear
from unn.extending import DescentOptions


def chain():
    """A - B - C, with words at A."""
    g = unn.FactorGraph("chain", n=3, m=4)
    A = g.variable("A", "n", unn.BinaryEntropy())
    B, C = (g.variable(name, "m", unn.SignedEntropy()) for name in "BC")
    g.factor(Multilinear(A["i"], g.parameter("W", "n m")["i j"], B["j"]))
    g.factor(Multilinear(B["j"], g.parameter("U", "m m")["j k"], C["k"]))
    return g


def model(**options):
    torch.manual_seed(0)
    return unn.DescentModel(chain(), DescentOptions(**options))


def test_a_variable_that_is_given_in_part_is_updated_at_the_end_of_a_round():
    assert list(model().order(["A"], [])) == ["B", "C", "B", "A"]
    assert list(model(sweep="forward").order(["A"], [])) == ["B", "C", "A"]


def test_variables_that_are_given_completely_are_not_updated():
    assert model().order(["A"], ["A"]).names == ("B", "C")
    assert model(sweep="forward").order(["A"], ["A"]) == ["B", "C"]


def test_one_round_completes_what_is_given_in_part():
    network = model(iterations=1)
    seen = unn.Partial(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, True, False]]))
    values = network.infer_values({"A": seen}, 1, {})
    g = network.graph
    with torch.no_grad():
        B = (torch.tensor([[1.0, 0.0, 0.0]]) @ g.W).tanh()
        C = (B @ g.U).tanh()
        B = (torch.tensor([[1.0, 0.0, 0.0]]) @ g.W + C @ g.U.T).tanh()
        expected = (B @ g.W.T).sigmoid()
    torch.testing.assert_close(values["A"][:, 2], expected[:, 2])
    assert torch.equal(values["A"][:, :2], torch.tensor([[1.0, 0.0]]))


def test_a_random_order_has_what_is_wanted_last_in_every_round():
    order = model(sweep="random").order(["A"], [])
    generator = torch.Generator().manual_seed(0)
    rounds = {order.round(generator) for _ in range(50)}
    assert rounds == {("B", "C", "A"), ("C", "B", "A")}
    assert model(sweep="random").order(["A"], ["A"]).round(generator) == ("B", "C")


@pytest.mark.parametrize("rounds", ["fixed", "random"])
def test_training_draws_numbers_of_rounds_and_inference_runs_all(rounds):
    network = model(iterations=4, rounds=rounds)
    expected = range(1, 5) if rounds == "random" else 4
    assert network.train().unrolled(["A"], [], ["C"]).iterations == expected
    assert network.eval().unrolled(["A"], [], ["C"]).iterations == 4


def test_random_rounds_are_determined_by_the_seed_and_change_the_loss():
    network = model(iterations=6, rounds="random").train()
    values = {"A": torch.tensor([[1.0, 0.0, 1.0]]), "C": torch.zeros(1, 4)}
    observed = {"A": torch.ones(1, 3, dtype=torch.bool)}

    def losses():
        torch.manual_seed(1)
        return [float(network.loss(values, observed).detach()) for _ in range(12)]

    assert losses() == losses()
    assert len(set(losses())) > 1
