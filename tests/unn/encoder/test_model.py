"""The encoder estimates marginals of hidden nodes; what it is trained for is the exact marginals."""

from __future__ import annotations

import math

import pytest
import torch

import unn
from factors import Multilinear
from unn.errors import DeclarationError, ObservationError


def pair(coupling: float = 1.0) -> unn.FactorGraph:
    """Two categories of three values, the second like the first."""
    g = unn.FactorGraph("pair", value=3)
    first, second = g.variable("first", "value", unn.Entropy()), g.variable("second", "value", unn.Entropy())
    same = g.constant("same", "value other", coupling * torch.eye(3))
    g.factor(Multilinear(first["a"], same["a b"], second["b"]))
    return g


def small(**options: object) -> unn.EncoderOptions:
    return unn.EncoderOptions(width=16, blocks=1, hidden=16, dropout=0.0, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_trained_encoder_has_the_exact_marginals():
    torch.manual_seed(0)
    g = pair(1.5)
    model = unn.Encoder(g, small(), {})
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen = torch.ones(512, dtype=torch.bool)
    for _ in range(250):
        values = {name: x[0].float() for name, x in unn.exact.sample(g, 512, generator=generator).items()}
        loss = model.loss(values, {"first": seen})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    given = {"first": torch.eye(3)}
    estimate = model.infer_values(given, 3, {})["second"]
    exact = unn.exact.marginals(g, given)["second"].float()
    torch.testing.assert_close(estimate, exact, atol=0.04, rtol=0)


def test_the_loss_is_the_mean_cross_entropy_of_the_hidden_targets():
    torch.manual_seed(1)
    values = {"first": torch.eye(3)[[0, 1]], "second": torch.eye(3)[[2, 1]]}
    nothing: dict[str, torch.Tensor] = {}
    for targets, count in (((), 2), (("second",), 1)):
        model = unn.Encoder(pair(), small(targets=targets), {})
        answer = model.infer_values({}, 2, {})
        logs = [
            math.log(float(answer[name][row] @ values[name][row]))
            for name in targets or ("first", "second")
            for row in range(2)
        ]
        assert model.loss(values, nothing).item() == pytest.approx(-sum(logs) / (2 * count), rel=1e-5)


def test_given_values_are_returned_and_rows_do_not_depend_on_one_another():
    torch.manual_seed(2)
    model = unn.Encoder(pair(), small(), {}).eval()
    mask = torch.tensor([True, False])
    given = {"first": unn.Partial(torch.eye(3)[[2, 0]], mask)}
    both = model.infer_values(given, 2, {})
    assert torch.equal(both["first"][0], torch.eye(3)[2])
    assert float(both["first"][1].max()) < 1
    alone = model.infer_values({"first": torch.eye(3)[[2]]}, 1, {})
    torch.testing.assert_close(alone["second"], both["second"][:1])


def test_variables_without_tokens_are_read_from_all_tokens_and_cannot_be_given():
    torch.manual_seed(3)
    model = unn.Encoder(pair(), small(tokens=("second",)), {}).eval()
    assert model.network.pooled == 1
    answers = model.infer_values({"second": torch.eye(3)}, 3, {})["first"]
    torch.testing.assert_close(answers.sum(-1), torch.ones(3))
    assert not torch.allclose(answers[0], answers[1])
    with pytest.raises(ObservationError, match="'first' is given, but it has no token"):
        model.infer_values({"first": torch.eye(3)}, 3, {})


def test_attention_sums_to_one_and_states_are_those_of_the_blocks():
    torch.manual_seed(4)
    model = unn.Encoder(pair(), unn.EncoderOptions(width=8, blocks=2, heads=2, hidden=8), {})
    tokens = torch.tensor([[1, 5], [0, 4]])
    attention = model.network.attention(tokens)
    assert attention.shape == (2, 2, 2, 2, 2)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 2, 2, 2))
    assert model.training
    assert [x.shape for x in model.network.states(tokens)] == [(2, 2, 8)] * 3


def test_weights_of_one_size_are_refused_for_another():
    g = unn.FactorGraph("bits")
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Multilinear(b["i"], b["i+1"]))
    model = unn.Encoder(g, small(), {"node": 3})
    with pytest.raises(DeclarationError, match="node=3"):
        model.infer_values({}, 1, {"node": 4})


def test_answers_of_a_network_in_training_mode_have_no_dropout():
    model = unn.Encoder(pair(), unn.EncoderOptions(width=16, blocks=1, hidden=16, dropout=0.5), {})
    given = {"first": torch.eye(3)[[0, 0]]}
    one, other = (model.train().infer_values(given, 2, {})["second"] for _ in range(2))
    assert torch.equal(one, other)
    assert model.training
    torch.testing.assert_close(one[0], one[1])
