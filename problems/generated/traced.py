"""Problems whose examples are draws of a traced program, with plates of any size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unn.errors import ArgumentError
from unn.extending import DeclaredProblem

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    import unn
    from unn.extending import Trained
    from unn.networks.tokens import Given
    from unn.programs import Plated, Traced

PARTICLES = 10_000
"""Smallest number of particles of a reference posterior."""


_MANY = 50
"""Smallest number of samples whose distribution is drawn, rather than each of them."""


@dataclass(frozen=True)
class Source:
    """A program to trace.

    Attributes:
        key: names, arguments and a digest of the files; equal for equal programs alone, traced once.
        program: function of the tracer and the sizes of the plates.
        plates: least and largest size of each plate, by name; empty for none.
    """

    key: Hashable
    program: Callable[..., object]
    plates: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class TracedProblem(DeclaredProblem):
    """A problem that is a program: its graph, examples, sizes and exact posteriors come from the trace."""

    def __init__(self) -> None:
        self._traced: dict[Hashable, Traced] = {}
        self._plated: dict[Hashable, Plated] = {}

    @abstractmethod
    def source(self, config: Any) -> Source:
        """The program of a configuration."""

    def traced(self, config: Any, sizes: Mapping[str, int] | None = None) -> Traced:
        """The program at given sizes of its plates, run once for each."""
        from unn.programs import trace

        source = self.source(config)
        if source.plates:
            return self.plated(config).at(**(sizes or self.test_sizes(config)))
        if source.key not in self._traced:
            self._traced[source.key] = trace(source.program)
        return self._traced[source.key]

    def plated(self, config: Any) -> Plated:
        """The program with plates."""
        from unn.programs import trace_plates

        source = self.source(config)
        if source.key not in self._plated:
            self._plated[source.key] = trace_plates(source.program, source.plates)
        return self._plated[source.key]

    def declare(self, config: Any) -> unn.FactorGraph:
        """The graph of the program."""
        from unn.programs import trace, trace_plates

        # a separate graph for each network
        source = self.source(config)
        plates = source.plates
        return (trace_plates(source.program, plates) if plates else trace(source.program)).graph

    def generate(
        self, config: Any, count: int, generator: torch.Generator, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Draws from the program."""
        return self.traced(config, sizes).draw(count, generator)

    def sizes(self, config: Any, generator: torch.Generator) -> dict[str, int]:
        """Random sizes of the plates."""
        return self.plated(config).random_sizes(generator) if self.sizes_vary(config) else {}

    def sizes_vary(self, config: Any) -> bool:
        """Whether the program has plates."""
        return bool(self.source(config).plates)

    def test_sizes(self, config: Any) -> dict[str, int]:
        """Sizes in the middle of their ranges."""
        return {name: (least + most) // 2 for name, (least, most) in self.source(config).plates.items()}

    def read_given(self, run: Trained, texts: tuple[str, ...]) -> tuple[Given, dict[str, int]]:
        """Evidence on plates of the sizes of training.

        Raises:
            ArgumentError: names the plate with more or fewer entries than in training.
            ObservationError: for evidence of density zero, as far as given values decide it.
        """
        import torch

        from unn.graph.partial import Partial, rows_of

        given, sizes = super().read_given(run, texts)
        for name, (least, most) in self.source(run.config).plates.items():
            if not least <= sizes[name] <= most:
                raise ArgumentError(
                    f"{self.name}: the evidence has {sizes[name]} {name}, and the run was trained on {least} "
                    f"to {most}."
                )
        traced = self.traced(run.config, sizes)
        count = max((len(x.value if isinstance(x, Partial) else x) for x in given.values()), default=1)
        for row in torch.arange(count).split(1):
            traced.require_possible({name: rows_of(x, row, count) for name, x in given.items()})
        return given, sizes

    def picture(self, run: Trained, values: Mapping[str, Tensor], given: Given) -> Figure:
        """Corner plot of many samples of few numbers that are not given, or single samples."""
        from unn.draw.corner import MOST, draw_corner
        from unn.networks.tokens import kinds

        kind = kinds(self.traced(run.config).graph)
        drawn = {
            name: values[name]
            for name in self.compared_variables(run.config)
            if kind[name] != "category" and not _is_complete(given.get(name))
        }
        numbers = sum(x[0].numel() for x in drawn.values())
        count = len(next(iter(values.values())))
        if count < _MANY or not 1 <= numbers <= MOST:
            return super().picture(run, values, given)
        return draw_corner(drawn)

    def compared_variables(self, config: Any) -> tuple[str, ...]:
        """All random variables of the program; computed ones have no spread of their own."""
        return self.traced(config).random_variables

    def reference(self, config: Any, given: Given, count: int, seed: int) -> dict[str, Tensor]:
        """Samples by sequential Monte Carlo on the density of the program, a random part of at least 10,000
        particles, which are remembered in the user's folder for caches."""
        import torch

        from .remembered import posterior

        particles = max(count, PARTICLES)
        values = posterior(self.traced(config), str(self.source(config).key), given, particles, seed)
        order = torch.randperm(particles, generator=torch.Generator().manual_seed(seed))[:count]
        return {name: x[order] for name, x in values.items()}

    def reference_nodes(self, config: Any, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Random nodes: evidence on what is computed from them has density zero in general."""
        import torch

        tape = self.traced(config, sizes).tape
        drawn = tape.drawn_nodes()
        return {
            name: torch.tensor([node in drawn for node in recorded.nodes.ravel().tolist()]).view(
                recorded.nodes.shape
            )
            for name, recorded in tape.variables.items()
        }


def _is_complete(value: Tensor | unn.Partial | None) -> bool:
    """Whether evidence gives all entries of a variable."""
    from unn import Partial

    return bool(value.mask.all()) if isinstance(value, Partial) else value is not None
