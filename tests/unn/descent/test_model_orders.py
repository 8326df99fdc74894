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


VALUES = {"A": torch.tensor([[1.0, 0.0, 1.0]]), "C": torch.tensor([[0.1, -0.2, 0.3, 0.4]])}
OBSERVED = {"A": torch.ones(1, 3, dtype=torch.bool)}


def losses(network, count):
    return [round(float(network.loss(VALUES, OBSERVED).detach()), 6) for _ in range(count)]


@pytest.mark.parametrize("rounds", ["fixed", "random", "log-random"])
def test_training_draws_numbers_of_rounds_and_evaluation_runs_all(rounds):
    of_rounds = [losses(model(iterations=k).train(), 1)[0] for k in range(1, 5)]
    assert len(set(of_rounds)) == 4
    network = model(iterations=4, rounds=rounds)
    drawn = losses(network.train(), 100)
    assert set(drawn) == (set(of_rounds[-1:]) if rounds == "fixed" else set(of_rounds))
    assert losses(network.eval(), 3) == of_rounds[-1:] * 3


def test_log_random_rounds_come_in_proportion_to_their_inverse():
    of_rounds = [losses(model(iterations=k).train(), 1)[0] for k in range(1, 5)]
    drawn = losses(model(iterations=4, rounds="log-random").train(), 1200)
    expected = [1200 / k / (1 + 1 / 2 + 1 / 3 + 1 / 4) for k in range(1, 5)]
    counts = [drawn.count(loss) for loss in of_rounds]
    chi_square = sum((n - m) ** 2 / m for n, m in zip(counts, expected, strict=True))
    assert chi_square < 16.3  # quantile 0.999 of three degrees of freedom


def test_random_rounds_are_determined_by_the_seed():
    network = model(iterations=6, rounds="random").train()

    def seeded_losses():
        torch.manual_seed(1)
        return losses(network, 12)

    assert seeded_losses() == seeded_losses()


def gradients(network):
    network.zero_grad()
    network.loss(VALUES, OBSERVED).backward()
    return [p.grad.clone() for p in network.parameters()]


def test_gradients_through_the_last_rounds_are_those_of_truncated_rounds():
    every, last = model(iterations=4).train(), model(iterations=4, gradient_rounds=1).train()
    assert losses(every, 1) == losses(last, 1)
    graph = last.graph
    network = unn.Unrolled(graph, "A", "C", ["B", "C"], iterations=4, gradient=unn.Truncate(1))
    t = network.preactivations(VALUES["A"])
    graph.zero_grad()
    (graph.variables["C"].regularizer.loss(t, VALUES["C"]).sum() / 4).backward()
    expected = [p.grad.clone() for p in graph.parameters()]
    torch.testing.assert_close(gradients(last), expected)
    assert not torch.allclose(gradients(every)[0], expected[0])
    torch.testing.assert_close(gradients(model(iterations=4, gradient_rounds=4).train()), gradients(every))


def test_evaluation_differentiates_all_rounds():
    every, last = model(iterations=4).eval(), model(iterations=4, gradient_rounds=1).eval()
    torch.testing.assert_close(gradients(last), gradients(every))
