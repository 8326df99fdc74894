"""The contract of engines: all installed engines keep it, and faulty ones do not."""

import pytest
import torch

import unn
from factors import Cardinality, Multilinear
from unn.extending import ConditionalModel, Engine, Frames, SamplingOptions, load_engine
from unn.testing import EngineContract


def chain():
    g = unn.FactorGraph("chain", n=3, k=2, c=3)
    x = g.variable("x", "n", unn.BinaryEntropy())
    y = g.variable("y", "k | c", unn.Entropy())
    z = g.variable("z", "n", unn.SquaredNorm())
    W = g.parameter("W", "k c n")
    V = g.parameter("V", "n", init="normal")
    g.factor(Multilinear(W["k c n"], y["k c"], x["n"]))
    g.factor(Multilinear(V["n"], x["n"], z["n"]))
    g.factor(Cardinality(y["k c"], each="c", at_most=1))
    return g


def chain_examples(generator):
    x = torch.randint(2, (32, 3), generator=generator).float()
    order = torch.rand(32, 3, generator=generator).argsort(1)[:, :2]
    y = torch.nn.functional.one_hot(order, 3).float()
    return {"x": x, "y": y, "z": x + 0.1 * torch.randn(32, 3, generator=generator)}


def contract(make):
    class Contract(EngineContract):
        def engine(self):
            return make()

        def graph(self):
            return chain()

        def examples(self, generator):
            return chain_examples(generator)

        def given(self):
            return ("x",)

    return Contract


TestDescent = contract(lambda: load_engine("descent"))
TestDenoiser = contract(lambda: load_engine("denoiser"))
TestRegressor = contract(lambda: load_engine("regressor"))
TestVaeac = contract(lambda: load_engine("vaeac"))


class Memory(ConditionalModel):
    """One of the stored examples, whatever is given."""

    def __init__(self, graph, sizes):
        super().__init__(Frames(graph))
        self.register_buffer("rows", torch.zeros(16, self.frames.at(**sizes).numbers))

    def prepare(self, values, **sizes):
        super().prepare(values, **sizes)
        self.rows.copy_(self.example(values, {}, **sizes)[0][:16])

    def drawing(self, options, trace):
        def draw(batch, generators):
            chosen = [torch.randint(16, (), generator=generator) for generator in generators]
            return torch.where(batch.numbers, batch.rows, self.rows[torch.stack(chosen)])

        return draw


class Neighbours(Engine):
    name, summary, options, answers = "memory", "one of the examples", SamplingOptions, ("sample",)

    def refusal(self, graph):
        return ""

    def build(self, graph, options, sizes):
        return Memory(graph, sizes)


TestMemory = contract(Neighbours)


def of_model(change):
    """An engine whose model is changed."""

    class Faulty(Neighbours):
        def build(self, graph, options, sizes):
            model = super().build(graph, options, sizes)
            change(model)
            return model

    return contract(Faulty)()


def across_the_batch(model):
    def drawing(options, trace):
        def draw(batch, generators):
            return torch.where(batch.numbers, batch.rows, len(batch.rows) * model.rows[:1])

        return draw

    model.drawing = drawing


def without_seed(model):
    def drawing(options, trace):
        def draw(batch, generators):
            chosen = torch.randint(16, (len(batch.rows),))
            return torch.where(batch.numbers, batch.rows, model.rows[chosen])

        return draw

    model.drawing = drawing


@pytest.mark.parametrize(
    ("change", "test"),
    [
        (across_the_batch, "test_one_query_has_the_same_answer_alone_and_in_a_batch"),
        (without_seed, "test_a_seed_determines_the_samples"),
        (lambda model: setattr(model, "has_steps", True), "test_a_trace_is_called_or_refused"),
    ],
)
def test_faulty_engines_break_the_contract(change, test):
    with pytest.raises(AssertionError):
        getattr(of_model(change), test)()


def test_a_model_that_lacks_a_capability_or_is_no_module_is_refused_with_the_engine():
    class Both(Neighbours):
        answers = ("sample", "infer")

    class Number(Neighbours):
        def build(self, graph, options, sizes):
            return 3

    for engine, facts in ((Both(), "CanInfer"), (Number(), "int")):
        with pytest.raises(unn.UnnError, match=f"'memory'.*{facts}"):
            unn.extending.build_model(engine, chain(), SamplingOptions(), {})
