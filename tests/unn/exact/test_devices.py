"""Inference about tables and quadratic energies on another device gives the answers of the CPU."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.elsewhere import DEVICE, Elsewhere, modules_elsewhere, values
from support.table_models import models, random_model

import unn
from factors import Multilinear
from unn.belief.model import BeliefModel
from unn.belief.options import BeliefOptions
from unn.exact import inference
from unn.exact.mixed_model import MixedModel
from unn.exact.model import ExactModel
from unn.exact.options import ExactOptions
from unn.exact.tables import Family, TableEvidence, TableModel

SPINS = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])


def chain():
    g = unn.FactorGraph("chain", node=3)
    x = g.variable("x", "node", unn.SignedEntropy())
    coupling = g.parameter("J", "node")
    g.factor(Multilinear(coupling["i"], x["i"], x["i+1"]))
    with torch.no_grad():
        g.J.copy_(torch.tensor([0.4, -0.7, 0.0]))
    return g


def mixture():
    g = unn.FactorGraph("mixture", k=2)
    z = g.variable("z", "k", unn.Entropy())
    x = g.variable("x", "", unn.SquaredNorm())
    mean = g.parameter("m", "k")
    g.factor(Multilinear(mean["k"], z["k"], x[""]))
    with torch.no_grad():
        g.m.copy_(torch.tensor([-1.0, 2.0]))
    return g


def learned(model, examples, observed, device):
    loss = model.loss(
        {name: x.to(device) for name, x in examples.items()},
        {name: x.to(device) for name, x in observed.items()},
    )
    return loss, *torch.autograd.grad(loss, list(model.parameters()))


MODELS = {
    "exact": (
        lambda: ExactModel(chain(), ExactOptions()),
        {"x": SPINS},
        {"x": torch.tensor([[True, False, True]])},
    ),
    "belief": (
        lambda: BeliefModel(chain(), BeliefOptions()),
        {"x": SPINS},
        {"x": torch.tensor([[True, False, True]])},
    ),
    "mixed": (
        lambda: MixedModel(mixture(), ExactOptions()),
        {"x": torch.tensor([0.5, -1.0])},
        {"x": torch.tensor([False])},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_the_cpu_and_on_the_device_of_the_parameters(name):
    make, examples, observed = MODELS[name]
    model = make()
    expected = learned(model, examples, observed, "cpu")
    with modules_elsewhere():
        there = copy.deepcopy(model).to(DEVICE)
        ours_there = learned(there, examples, observed, DEVICE)
        assert all(x.device == DEVICE for x in ours_there)
    for ours, theirs in zip(values(ours_there), expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("name", MODELS)
def test_means_are_those_of_the_cpu_whatever_the_device_of_the_evidence(name):
    make, examples, observed = MODELS[name]
    model = make()
    (variable,) = examples
    partial = unn.Partial(examples[variable], observed[variable].expand(2, *observed[variable].shape[1:]))
    if name == "mixed":
        partial = examples[variable]
    expected = model.infer_values({variable: partial}, 2, {})
    with modules_elsewhere():
        there = copy.deepcopy(model).to(DEVICE)
        for device in ("cpu", DEVICE):
            given = (
                partial.to(device)
                if isinstance(partial, torch.Tensor)
                else unn.Partial(partial.value.to(device), partial.mask.to(device))
            )
            answer = there.infer_values({variable: given}, 2, {})
            for key, x in expected.items():
                torch.testing.assert_close(answer[key].cpu(), x)


def queries(model, evidence, options, seed=0):
    """Answers to all queries of tables: log-partitions, marginals, entropy, best values, samples."""
    possible = bool((inference.log_partition(model, evidence, options) > -torch.inf).all())
    answers = [
        inference.log_partition(model, evidence, options, semiring=semiring)
        for semiring in inference.SEMIRINGS
    ]
    marginals = inference.marginals(model, evidence, options)
    answers += [marginals.log_partition, marginals.probabilities, inference.entropy(model, evidence, options)]
    if possible:
        answers += inference.best_values(model, evidence, options)
        answers.append(inference.k_best(model, 3, evidence, options)[1])
        generator = torch.Generator().manual_seed(seed)
        answers.append(inference.sample(model, 5, evidence, options, generator))
    return answers


def compare_queries(model, evidence, options):
    expected = queries(model, evidence, options)
    with Elsewhere() as mode:
        answers = queries(replace(model, device=DEVICE), evidence, options)
        assert all(x.device == DEVICE for x in answers)
        assert mode.seen > 0
    for ours, theirs in zip(values(answers), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=25)
@given(models(), st.data())
def test_tables_are_multiplied_on_the_device_of_their_model_with_the_answers_of_the_cpu(model, data):
    count = max(model.batch, data.draw(st.sampled_from([1, 3])))
    count = count if model.batch in (1, count) else model.batch
    rows = [[data.draw(st.integers(-1, size - 1)) for size in model.states] for _ in range(count)]
    scores = {0: torch.randn(1, model.states[0], generator=torch.Generator().manual_seed(0))}
    evidence = TableEvidence(torch.tensor(rows), scores if data.draw(st.booleans()) else {})
    compare_queries(model, evidence, ExactOptions())


@pytest.mark.slow
def test_parts_of_a_query_that_exceed_the_memory_are_added_on_the_device_of_the_model():
    generator = torch.Generator().manual_seed(0)
    scopes = [[k, other] for k in range(6) for other in range(k)]
    model = random_model(generator, [3] * 6, scopes, batch=2)
    evidence = TableEvidence(torch.full((2, 6), -1))
    needed = inference.cost(model, evidence).bytes
    compare_queries(model, evidence, ExactOptions(memory=0.5 * needed / 2**30))


def test_exchangeable_variables_are_counted_on_the_cpu_and_their_answers_are_on_the_device():
    logs = torch.tensor([[0.3, -0.2], [-0.2, 0.1]], dtype=torch.float64)
    scopes = torch.tensor([[k, other] for k in range(40) for other in range(k)])
    family = Family(scopes, logs.expand(len(scopes), 1, 2, 2))
    model = TableModel((2,) * 40, (family,))
    expected = inference.marginals(model)
    with Elsewhere():
        ours = inference.marginals(replace(model, device=DEVICE))
        assert ours.probabilities.device == ours.log_partition.device == DEVICE
        answers = values([ours.log_partition, ours.probabilities])
    torch.testing.assert_close(answers[0], expected.log_partition)
    torch.testing.assert_close(answers[1], expected.probabilities)


@pytest.mark.parametrize("spread", [1.0, 400.0])
def test_two_gradients_of_a_log_partition_are_those_of_the_cpu(spread):
    def derivatives(graph):
        total = unn.exact.log_partition(graph, {"x": unn.Partial(SPINS, torch.eye(2, 3).bool())}).sum()
        (first,) = torch.autograd.grad(total, [graph.J], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), [graph.J])
        return total, first, second

    graph = chain()
    with torch.no_grad():
        graph.J.mul_(spread)
    expected = derivatives(graph)
    with modules_elsewhere():
        there = copy.deepcopy(graph).to(DEVICE)
        ours = derivatives(there)
        assert all(x.device == DEVICE for x in ours)
    for one, other in zip(values(ours), expected, strict=True):
        torch.testing.assert_close(one, other.detach())


def test_answers_about_a_graph_are_on_its_device():
    with modules_elsewhere():
        there = copy.deepcopy(chain()).to(DEVICE)
        answer = unn.exact.marginals(there)
        assert answer["x"].device == answer.log_partition.device == DEVICE
        assert unn.exact.best_values(there)["x"].device == DEVICE
        assert unn.exact.k_best_values(there, 2).energy.device == DEVICE
        assert unn.exact.sample(there, 2)["x"].device == DEVICE
        assert unn.exact.entropy(there).device == DEVICE


def test_gaussian_queries_are_those_of_the_cpu():
    g = unn.FactorGraph("pair", n=2)
    x = g.variable("x", "n", unn.SquaredNorm())
    coupling = g.parameter("J", "n")
    g.factor(Multilinear(coupling["i"], x["i"], x["i+1"]))
    with torch.no_grad():
        g.J.fill_(0.8)
    given = unn.Partial(torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]]))
    expected = unn.exact.gaussian_marginals(g, {"x": given})["x"]
    with modules_elsewhere():
        there = copy.deepcopy(g).to(DEVICE)
        moved = unn.Partial(given.value.to(DEVICE), given.mask.to(DEVICE))
        torch.testing.assert_close(unn.exact.gaussian_marginals(there, {"x": moved})["x"], expected)
