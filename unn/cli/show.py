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
    """A problem's graph in words, and who interacts with whom; as pictures too, if a folder is given.

    Args:
        problem: to show.
        config: its options.
        out: folder for graph.svg and adjacency.png.
        theme: "light" or "dark".

    Raises:
        UnnError: for options out of range, or a folder that cannot be written.
    """
    from ..draw import adjacency_text, draw_adjacency, draw_graph, save_figure, theme_named
    from ..runs.files import make_folder

    colours = theme_named(theme)
    problem.check(config)
    graph = problem.declare(config)
    lines = [problem.summary, "", *graph.explain().splitlines(), ""]
    data: dict[str, Any] = {"problem": problem.name, "explanation": graph.explain(), "graph": graph.to_mermaid()}
    try:
        found = graph.adjacency(**problem.test_sizes(config))
    except DeclarationError as error:
        # sizes that only the data know
        found = None
        lines.append(str(error))
    if found is not None:
        lines += [f"Who interacts with whom, among {found.count} nodes:", *adjacency_text(found.rows, found.columns, found.blocks).splitlines()]
        data |= {"nodes": dict(found.blocks), "entries": len(found.rows)}
    if out is not None:
        make_folder(out)
        save_figure(draw_graph(graph, theme=colours), out / "graph.svg")
        drawn = [out / "graph.svg"]
        if found is not None:
            save_figure(draw_adjacency(found.rows, found.columns, found.blocks, theme=colours, title=graph.name), out / "adjacency.png")
            drawn.append(out / "adjacency.png")
        lines += ["", "pictures: " + ", ".join(map(str, drawn))]
        data["pictures"] = [str(path) for path in drawn]
    return Answer(tuple(lines), data)
