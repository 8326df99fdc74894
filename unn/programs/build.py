"""Build the factor graph of a program: patterns for regular relations between nodes and parents, lists for
others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..errors import DeclarationError
from ..factor_graph import FactorGraph
from ..graph.structure import Clique, Depends, Pairs
from .kinds import Array
from .letters import Link, Names, Written
from .recognise import Template, recognise
from .sharing import unequal_indices, with_ordered
from .tape import Nodes, Recorded, Tape


def build(name: str, tape: Tape, plates: Mapping[int, str] | None = None) -> FactorGraph:
    """Build the graph of a complete run.

    Args:
        name: name of the graph.
        tape: tape of the run.
        plates: names of axes without a static size, by their size in this run.

    Raises:
        DeclarationError: for a program that samples nothing, or leaves statements without a name or entries
            without a value.
    """
    _check_complete(tape)
    links = [*_dependences(tape), *_cliques(tape)]
    names = Names.of(tape, links, plates)
    free = {axis for axis, size in names.sizes.items() if size in (plates or {})}
    written = [
        factor
        for child in tape.variables
        for factor in names.factors([link for link in links if link.one == child])
    ]
    graph = _declare_graph(name, tape, names, written)
    unequal = unequal_indices(tape, graph)
    if unequal:
        written = with_ordered(written, graph, names, unequal)
    return _declare_graph(name, tape, names, written, free) if unequal or free else graph


def _declare_graph(
    name: str, tape: Tape, names: Names, written: Sequence[Written], free: Collection[str] = ()
) -> FactorGraph:
    """Declare the variables and factors; axes in ``free`` have no static size."""
    declarations = [(variable, names.declaration(variable)) for variable in tape.variables.values()]
    # includes the sizes of option axes and of letters that split axes
    graph = FactorGraph(name, **{axis: size for axis, size in names.sizes.items() if axis not in free})
    for variable, axes in declarations:
        plates = [axis if axis in free else None for axis in axes.split()[: variable.nodes.ndim]]
        bounds = _bounds_of(variable, tape, plates)
        graph.variable(variable.name, axes, variable.values.regularizer(), bounds)
    for factor in written:
        references = [graph.variables[variable][text] for variable, text in factor.references]
        if factor.pairs is not None:
            one, other = references
            graph.factor(Pairs(one, other, factor.pairs, directed=factor.directed))
        elif factor.directed:
            graph.factor(Depends(*references, ordered=factor.ordered))
        else:
            graph.factor(Clique(*references, each=factor.each, ordered=factor.ordered))
    return graph


def _bounds_of(variable: Recorded, tape: Tape, plates: Sequence[str | None]) -> tuple[Array, Array] | None:
    """Bounds of the entries of real variables and counts; None for other kinds.

    Args:
        variable: variable of the program.
        tape: tape of a complete run.
        plates: names of its axes without a static size; None for other axes.

    Raises:
        DeclarationError: for bounds that differ along a plate.
    """
    kind = variable.values
    if kind.name not in ("real", "count"):
        return None
    low, high = (np.full(len(tape.parents), bound) for bound in (kind.low, kind.high))
    for statement in tape.statements:
        own = statement.kind
        low[statement.nodes], high[statement.nodes] = statement.bounds or (own.low, own.high)
    low, high = low[variable.nodes], high[variable.nodes]
    if kind.name == "count":
        low = np.zeros_like(low)
    # coordinates of numbers with an upper bound alone are the numbers
    high = np.where(np.isinf(low), np.inf, high)
    for axis, plate in enumerate(plates):
        if plate is None:
            continue
        first = low.take([0], axis), high.take([0], axis)
        if bool((low != first[0]).any() or (high != first[1]).any()):
            raise DeclarationError(
                f"program: the bounds of {variable.name!r} differ along the plate {plate!r}, whose size "
                "varies; draw it with the same bounds everywhere, or trace each size with unn.trace."
            )
        low, high = first
    return low, high


def _check_complete(tape: Tape) -> None:
    for statement in tape.statements:
        if statement.name is None:
            raise DeclarationError(
                f"program: the value of t.{statement.role} in line {statement.line} has no name: pass one, "
                "or assign it to entries of an array from t.empty; for an intermediate value that is not a "
                "variable, leave out t.deterministic."
            )
    for recorded in tape.variables.values():
        missing = np.flatnonzero(recorded.nodes.ravel() < 0)
        if len(missing):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise DeclarationError(
                f"program: {recorded.entry(int(missing[0]))!r}{more} of t.empty({recorded.name!r}) never got "
                "a value."
            )
    if not any(statement.role == "sample" for statement in tape.statements):
        raise DeclarationError(
            "program: it samples nothing, so there is no random variable; draw one with t.sample(name, "
            "distribution)."
        )


def _dependences(tape: Tape) -> list[Link]:
    """Links between child and parent variables, in order of declaration."""
    links = []
    for child in tape.variables.values():
        pairs_of: dict[str, list[tuple[int, int]]] = {}
        for flat, node in enumerate(child.nodes.ravel().tolist()):
            for parent in tape.parents[node]:
                place = tape.places[parent]
                assert place is not None
                pairs_of.setdefault(place[0], []).append((flat, place[1]))
        links += [
            _link(child, tape.variables[name], np.array(sorted(pairs_of[name])))
            for name in tape.variables
            if name in pairs_of
        ]
    return links


def _cliques(tape: Tape) -> list[Link]:
    """Links between entries that are drawn jointly."""
    pairs_of: dict[str, set[tuple[int, int]]] = {}
    for statement in tape.statements:
        for axes in statement.cliques:
            cliques = np.moveaxis(statement.nodes, axes, range(len(axes)))
            for clique in cliques.reshape(int(np.prod(cliques.shape[: len(axes)])), -1).tolist():
                places = [place for node in clique if (place := tape.places[node])]
                pairs_of.setdefault(places[0][0], set()).update((a, b) for _, a in places for _, b in places)
    links = []
    for name, pairs in pairs_of.items():
        link = _link(tape.variables[name], tape.variables[name], np.array(sorted(pairs)), directed=False)
        if not all(_is_clique(template) for template in link.templates):
            upper = np.array(sorted((a, b) for a, b in pairs if a < b))
            link = Link(name, name, [], (upper[:, 0], upper[:, 1]), directed=False)
        links.append(link)
    return links


def _link(one: Recorded, other: Recorded, pairs: Nodes, directed: bool = True) -> Link:
    columns = pairs[:, 0], pairs[:, 1]
    templates, rest = recognise(one.nodes.shape, other.nodes.shape, columns)
    return Link(one.name, other.name, templates, (columns[0][rest], columns[1][rest]), directed)


def _is_clique(template: Template) -> bool:
    """Whether a template pairs all entries that agree along some axes."""
    matching = all(
        b.letters == a.letters or b.letters[0] not in template.tied
        for a, b in zip(template.child, template.parent)
    )
    return template.plain and matching and all(len(place.letters) == 1 for place in template.parent)
