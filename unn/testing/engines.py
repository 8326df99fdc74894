"""The contract of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ..engine import (
    QUERIES,
    CanInfer,
    CanLearn,
    CanSample,
    CanSolve,
    Engine,
    SamplingOptions,
    SolvingOptions,
    build_model,
)
from ..errors import UnnError
from ..factor_graph import FactorGraph
from ..solver.solve import solve

_COUNT = 4


class EngineContract(ABC):
    """Tests that every engine must pass, on a small graph that it serves."""

    tolerance = 1e-5
    """Absolute tolerance of answers that must agree, in float32."""

    @abstractmethod
    def engine(self) -> Engine:
        """Make the engine."""

    @abstractmethod
    def graph(self) -> FactorGraph:
        """Make a new graph that the engine serves, whose axes have static sizes."""

    @abstractmethod
    def examples(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Draw at least 8 examples: values of all variables by name, shape ``(examples, *axes)``."""

    @abstractmethod
    def given(self) -> tuple[str, ...]:
        """Names of variables from which the others are inferred or sampled."""

    def test_the_engine_answers_what_it_says_and_names_the_reason_for_the_rest(self) -> None:
        engine, graph = self.engine(), self.graph()
        for query in QUERIES:
            verdict = engine.serves(graph, query)
            assert bool(verdict) == (query in engine.answers), f"{engine.name}: {query}: {verdict}"
            assert verdict or engine.name in verdict.reason

    def test_a_refusal_is_text_for_every_declaration(self) -> None:
        from ..graph.structure import Clique
        from ..regularizers import Entropy, SquaredNorm

        dynamic = FactorGraph("dynamic")
        dynamic.factor(Clique(dynamic.variable("a", "i", SquaredNorm())["i"]))
        single = FactorGraph("single", k=2)
        single.factor(Clique(single.variable("b", "k", Entropy())["k"]))
        for graph in (FactorGraph("empty"), dynamic, single):
            reason = self.engine().refusal(graph)
            assert isinstance(reason, str), f"graph {graph.name!r}: refusal must return text, got {reason!r}"

    def test_the_loss_is_one_finite_number_with_finite_gradients(self) -> None:
        model, examples = self._model()
        assert isinstance(model, CanLearn)
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            return
        loss = model.loss(examples, self._masks(examples))
        assert loss.ndim == 0 and bool(loss.isfinite()), f"the loss must be one finite number, got {loss}"
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for (name, _), gradient in zip(model.named_parameters(), gradients, strict=False):
            assert gradient is None or bool(gradient.isfinite().all()), (
                f"the gradient of {name} is not finite"
            )

    def test_the_weights_of_a_prepared_model_load_into_a_fresh_one(self) -> None:
        model, examples = self._model()
        fresh = build_model(self.engine(), self.graph(), self.engine().options(), {})
        fresh.load_state_dict(model.state_dict())
        fresh.eval()
        for one, other in zip(self._answers(model, examples), self._answers(fresh, examples), strict=True):
            assert torch.equal(one, other), "a model with the same state gives other answers"

    def test_answers_contain_the_evidence_and_lie_in_the_domains(self) -> None:
        model, examples = self._model()
        variables = self.graph().variables
        for values in self._answers_by_name(model, examples):
            for name in self.given():
                assert torch.allclose(values[name], examples[name][:_COUNT], atol=self.tolerance), (
                    f"the answer changes the given values of {name}"
                )
            for name, value in values.items():
                inside = variables[name].regularizer.contains(value)
                assert bool(inside.all()), f"the answer lies outside the domain of {name}"

    def test_one_query_has_the_same_answer_alone_and_in_a_batch(self) -> None:
        model, examples = self._model()
        for k in range(_COUNT):
            alone = {name: x[k : k + 1] for name, x in examples.items()}
            batch = {name: x[:_COUNT].roll(-k, 0) for name, x in examples.items()}
            answers = zip(self._answers(model, alone), self._answers(model, batch), strict=True)
            for one, several in answers:
                assert torch.allclose(one, several[:1], atol=self.tolerance), (
                    "the answer to a query depends on the other queries of its batch"
                )

    def test_a_seed_determines_the_samples(self) -> None:
        model, examples = self._model()
        first, second = self._answers(model, examples), self._answers(model, examples)
        assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))

    def test_what_is_called_solved_meets_all_constraints_and_the_evidence(self) -> None:
        model, examples = self._model()
        if not isinstance(model, CanSolve):
            return
        given = {name: examples[name][:_COUNT] for name in self.given()}
        solutions = solve(model, given, options=SolvingOptions(tries=2))
        for k, outcome in enumerate(solutions.outcomes):
            if outcome == "solved":
                answers = solutions.answers[k]
                for constraint in self.graph().constraints:
                    assert not bool(constraint.violations_of(answers).any()), f"{constraint.name} is violated"
                for name, x in given.items():
                    assert torch.equal(answers[name], x[k].expand_as(answers[name]))

    def test_a_trace_is_called_or_refused(self) -> None:
        model, examples = self._model()
        if not isinstance(model, CanSample):
            return
        steps: list[int] = []
        given = {name: examples[name][:1] for name in self.given()}
        try:
            model.sample_with(given, 1, SamplingOptions(seed=0), {}, trace=lambda k, _: steps.append(k))
        except UnnError:
            return
        assert steps, "sampling accepts a trace and never calls it"

    def _model(self) -> tuple[torch.nn.Module, dict[str, Tensor]]:
        torch.manual_seed(0)
        engine = self.engine()
        model = build_model(engine, self.graph(), engine.options(), {})
        examples = dict(self.examples(torch.Generator().manual_seed(0)))
        assert isinstance(model, CanLearn)
        model.prepare(examples)
        return model.eval(), examples

    def _masks(self, examples: Mapping[str, Tensor]) -> dict[str, Tensor]:
        variables = self.graph().variables
        return {
            name: torch.ones([1] * (1 + len(variables[name].node_axes)), dtype=torch.bool)
            for name in self.given()
        }

    def _answers(self, model: torch.nn.Module, examples: Mapping[str, Tensor]) -> list[Tensor]:
        return [x for values in self._answers_by_name(model, examples) for x in values.values()]

    @torch.no_grad()
    def _answers_by_name(
        self, model: torch.nn.Module, examples: Mapping[str, Tensor]
    ) -> list[Mapping[str, Tensor]]:
        given = {name: examples[name][:_COUNT] for name in self.given()}
        count = len(next(iter(given.values())))
        answers: list[Mapping[str, Tensor]] = []
        if isinstance(model, CanInfer):
            answers.append(model.infer_values(given, count, {}))
        if isinstance(model, CanSample):
            answers.append(model.sample_with(given, count, SamplingOptions(seed=0), {}).values)
        if isinstance(model, CanSolve):
            answers.append(solve(model, given, options=SolvingOptions(tries=1)).values)
        return answers
