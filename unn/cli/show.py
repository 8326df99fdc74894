"""unn show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..errors import DeclarationError
from .options import Json, Theme
from .problem import Problem
from .verb import Answer, Config, ProblemVerb


@dataclass(frozen=True)
class Show(ProblemVerb[Config]):
    """Explain a problem's graph and draw it."""

    name: ClassVar[str] = "show"

    config: Config
    out: Path | None = None
    """Folder for the pictures; none are drawn without it."""
    theme: Theme = "light"
    json: Json = False

    def __call__(self, problem: Problem) -> Answer:
        return show(problem, self.config, self.out, self.theme)


def show(problem: Problem, config: Any, out: Path | None, theme: str) -> Answer:
    """Explain the graph of a problem and its adjacency; draw both if a folder is given.

    Args:
        problem: the problem.
        config: its options.
        out: folder for graph.svg and adjacency.png; None draws no pictures.
        theme: "light" or "dark".

    Raises:
        UnnError: if an option is out of range, or the folder cannot be written.
    """
    from ..draw import adjacency_text, draw_adjacency, draw_graph, save_figure, theme_named
    from ..runs.files import make_folder

    colours = theme_named(theme)
    problem.check(config)
    graph = problem.declare(config)
    lines = [problem.summary, "", *graph.explain().splitlines(), ""]
    data: dict[str, Any] = {
        "problem": problem.name,
        "explanation": graph.explain(),
        "graph": graph.to_mermaid(),
    }
    try:
        adjacency = graph.adjacency(**problem.test_sizes(config))
    except DeclarationError as error:
        # some sizes depend on the data
        adjacency = None
        lines.append(str(error))
    if adjacency is not None:
        text = adjacency_text(adjacency.rows, adjacency.columns, adjacency.blocks)
        lines += [f"Who interacts with whom, among {adjacency.count} nodes:", *text.splitlines()]
        data |= {"nodes": dict(adjacency.blocks), "entries": len(adjacency.rows)}
    if out is not None:
        make_folder(out)
        save_figure(draw_graph(graph, theme=colours), out / "graph.svg")
        drawn = [out / "graph.svg"]
        if adjacency is not None:
            picture = draw_adjacency(
                adjacency.rows, adjacency.columns, adjacency.blocks, theme=colours, title=graph.name
            )
            save_figure(picture, out / "adjacency.png")
            drawn.append(out / "adjacency.png")
        lines += ["", "pictures: " + ", ".join(map(str, drawn))]
        data["pictures"] = [str(path) for path in drawn]
    return Answer(tuple(lines), data)
