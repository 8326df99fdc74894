"""The graph as text: a description in words and formulas, Mermaid, and Graphviz."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .arrays import Array, Index, Parameter, Reference, Variable
from .boundedness import boundedness_of
from .colouring import meets_itself
from .factor import EnergyFactor, Factor
from .patterns import Dimension, Pattern

if TYPE_CHECKING:
    from .declaration import Declaration

WIDTH = 100
_GLUE = "\0"

Renaming = Mapping[str, tuple[str, int]]
"""New letter and shift for each old letter."""


def explain(graph: Declaration) -> str:
    """Describe a graph in words and formulas: arrays, energy, exact block updates, boundedness.

    The last three are omitted if no factor has an energy, as in graphs for denoisers.

    Args:
        graph: the declaration; axes of unknown size are called dynamic.

    Returns:
        Plain text in lines of about 100 columns.
    """
    count = sum(p.numel() for p in graph.parameters())
    counts = [
        _count(len(graph.variables), "variable"),
        _count(len(graph.factors), "factor"),
        _count(count, "parameter entry"),
    ]
    sections = [
        _wrap(f"Factor graph {graph.name!r}: ", ", ".join(counts) + ".", 2),
        _variable_lines(graph),
        _fixed_array_lines(graph),
        _axis_lines(graph),
    ]
    if graph.factors and not graph.energy_factors:
        sections += [_structure_lines(graph)]
    else:
        boundedness = _wrap("Boundedness: ", str(boundedness_of(graph, ())), 2)
        sections += [_energy_lines(graph), _structure_lines(graph), _update_lines(graph), boundedness]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def to_mermaid(graph: Declaration) -> str:
    """The graph as a Mermaid flowchart: variables as circles, factors as squares; dotted edges where a factor
    has no energy."""
    lines = ["graph LR"]
    ids = {name: f"v{k}" for k, name in enumerate(graph.variables)}
    lines += [f'    {ids[name]}(("{_mermaid_text(name)}"))' for name in graph.variables]
    for k, factor in enumerate(graph.factors.values()):
        label = _mermaid_text(factor_label(factor) or "product")
        lines.append(f'    f{k}["{label}"]')
        edge = "---" if isinstance(factor, EnergyFactor) else "-.-"
        lines += [f"    {ids[name]} {edge} f{k}" for name in factor.variables]
    return "\n".join(lines)


def to_dot(graph: Declaration) -> str:
    """The graph in the language of Graphviz: variables as circles, factors as boxes; dashed edges where a
    factor has no energy."""
    lines = [f"graph {_dot_text(graph.name)} {{", "    rankdir=LR;"]
    ids = {name: f"v{k}" for k, name in enumerate(graph.variables)}
    lines += [f"    {ids[name]} [label={_dot_text(name)}, shape=circle];" for name in graph.variables]
    for k, factor in enumerate(graph.factors.values()):
        label = _dot_text(factor_label(factor) or "product")
        lines.append(f"    f{k} [label={label}, shape=box, width=0.2, height=0.2];")
        style = "" if isinstance(factor, EnergyFactor) else " [style=dashed]"
        lines += [f"    {ids[name]} -- f{k}{style};" for name in factor.variables]
    return "\n".join([*lines, "}"])


def factor_label(factor: Factor) -> str:
    """A short label for figures: the given name, else the class unless it is a plain product; then the other
    arrays.

    Variables are omitted, since edges show them; the label of a plain product of variables is empty.
    """
    kind = type(factor).__name__
    default_name = f"{kind}({', '.join(reference.array.name for reference in factor.references)})"
    arrays = ", ".join(
        dict.fromkeys(r.array.name for r in factor.references if not isinstance(r.array, Variable))
    )
    is_named = factor.name.partition("#")[0] != default_name
    head = (
        factor.name
        if is_named
        else ""
        if isinstance(factor, EnergyFactor) and factor.product() is not None
        else kind
    )
    return " ".join(part for part in (head + ":" if head and arrays else head, arrays) if part)


def _variable_lines(graph: Declaration) -> list[str]:
    lines = ["Variables"] if graph.variables else []
    for variable in graph.variables.values():
        regularizer = variable.regularizer
        nodes, over = ", ".join(variable.node_axes), ", ".join(regularizer.over_axes(variable.axes))
        axes = (
            f"axes {_axes(graph, variable)}; "
            f"{f'one node for each {nodes}' if nodes else 'all of it is one node'}"
        )
        lines += _wrap(f"  {variable.name}: ", axes, 6)
        lines += _wrap("      ", f"Psi(x) = {regularizer.formula}, by {regularizer!r}", 10)
        if variable.bounds is not None:
            lines += _wrap("      ", f"entries {variable.bounds}", 10)
        lines += _wrap("      ", f"activation: {regularizer.activation}{' over ' if over else ''}{over}", 10)
    return lines


def _fixed_array_lines(graph: Declaration) -> list[str]:
    lines = []
    values = graph.fixed_values()
    for array in graph.arrays.values():
        if isinstance(array, Variable):
            continue
        shape = _shape(graph, array)
        if isinstance(array, Index):
            lines += _wrap(
                f"  {array.name}: ",
                f"index along {_axes(graph, array)}; its numbers are entries of axis {array.into}",
                6,
            )
            continue
        text = f"{array.kind}, axes {_axes(graph, array)}; "
        text += (
            _count(math.prod(size or 0 for size in shape), "entry")
            if None not in shape
            else "number of entries dynamic"
        )
        if array.name not in values:
            text += (
                ", without values until its sizes are known"
                if isinstance(array, Parameter)
                else ", passed to each call"
            )
        lines += _wrap(f"  {array.name}: ", text, 6)
    for factor in graph.factors.values():
        if factor.module is not None:
            count = sum(p.numel() for p in factor.module.parameters())
            lines += _wrap(
                "  ", f"inside factor {factor.name}: a module with {_count(count, 'parameter entry')}", 6
            )
    head = (
        "Parameters, constants and indices"
        if any(isinstance(a, Index) for a in graph.arrays.values())
        else "Parameters and constants"
    )
    return [head, *lines] if lines else []


def _axis_lines(graph: Declaration) -> list[str]:
    """Describe tied axes and relations between sizes."""
    table = graph.size_table
    lines = []
    for first, *others in table.tied_groups():
        reasons = dict.fromkeys(table.reasons(first, other) for other in others)
        lines += _wrap("  ", f"{' = '.join([first, *others])}: one axis, by {' and '.join(reasons)}", 6)
    for relation in table.relations:
        if relation.by:
            lines += _wrap("  ", f"{relation}: as declared", 6)
    for pair in table.loose_pairs():
        one, other = pair.relation.axis, pair.relation.other
        if table.root(one) == table.root(other):
            text = f"{pair.reason} shifts {one} against {other}, but they are one axis (above); declare "
            text += f"relate_sizes('{pair.relation}') and untie them if their sizes differ"
        else:
            text = f"{pair.reason} runs along {one} and {other} at different shifts, as far as both reach; "
            text += f"relate_sizes('{pair.relation}') would tie their sizes"
        lines += _wrap("  ", text, 6)
    return ["Sizes", *lines] if lines else []


def _axes(graph: Declaration, array: Array) -> str:
    sizes = _shape(graph, array)
    parts = [
        f"{axis} = {'dynamic' if size is None else size}"
        for axis, size in zip(array.axes, sizes, strict=True)
    ]
    return ", ".join(parts) or "none (a scalar)"


def _shape(graph: Declaration, array: Array) -> tuple[int | None, ...]:
    return graph.size_table.shape(array, graph.size_table.static)


def _energy_lines(graph: Declaration) -> list[str]:
    factors = graph.energy_factors
    formulas = [text if (text := factor.formula()).startswith("-") else f"+ {text}" for factor in factors]
    column = min(max(map(len, formulas), default=0), 56)
    lines = ["Energy", *_sum("  E = ", [f"Psi({name})" for name in graph.variables] or ["0"], 6)]
    for factor, formula in zip(factors, formulas, strict=True):
        lines += _wrap("      ", f"{formula:<{column}}  (factor {factor.name})", 10)
    return lines


def _structure_lines(graph: Declaration) -> list[str]:
    lines = []
    for factor in graph.factors.values():
        if not isinstance(factor, EnergyFactor):
            lines += _wrap("  ", f"{factor.formula()}  (factor {factor.name})", 6)
    head = (
        "Factors without energy (who interacts, and what samples must meet; coordinate descent refuses them)"
    )
    return [head, *lines] if lines else []


def _update_lines(graph: Declaration) -> list[str]:
    lines = (
        ["Exact block updates (all letters that are not on the left are summed)"] if graph.variables else []
    )
    has_scatter = False
    for variable in graph.variables.values():
        factors = [f for f in graph.energy_factors if variable.name in f.variables]
        letters = _target_letters(variable, factors)
        terms = [term for factor in factors for term in _message_terms(factor, variable, letters)]
        has_scatter = has_scatter or any(" at [" in term for term in terms)
        left = f"{variable.name}[{' '.join(letters)}]" if letters else variable.name
        name, options = _activation(variable)
        lines += _sum(f"  {left} <- {name}(", terms or ["0"], 6, f"{options})")
        lines += _wrap("      ", _update_remark(variable, factors), 8)
    if has_scatter:
        lines.append(
            "  A term 'at [pattern]' is added to the entries of the variable that the pattern names."
        )
    return lines


def _update_remark(variable: Variable, factors: Sequence[EnergyFactor]) -> str:
    """Describe an update that is not a single exact step; empty otherwise."""
    curved = [factor for factor in factors if not factor.affine_in(variable.name)]
    if not curved:
        return "" if factors else "no factor with an energy touches it."
    names = ", ".join(factor.name for factor in curved)
    if variable.node_axes and all(factor.multilinear and meets_itself(factor, variable) for factor in curved):
        return (
            f"{variable.name} meets itself in {names}: it is updated in colour classes, sets of nodes "
            "without interaction (by a monotone inner solver, if a node meets itself)."
        )
    return (
        f"{variable.name} has no closed form in {names}: a monotone inner solver moves towards this value "
        "while the energy falls."
    )


def _activation(variable: Variable) -> tuple[str, str]:
    """Name of the activation, and the options of the regularizer after a semicolon."""
    options = repr(variable.regularizer).partition("(")[2].removesuffix(")")
    return variable.regularizer.activation.replace(" ", "-"), f"; {options}" if options else ""


def _message_terms(factor: EnergyFactor, variable: Variable, letters: Sequence[str]) -> list[str]:
    """The message to a variable as terms of a sum, one per occurrence of the variable."""
    condition = factor.product()
    if condition is None:
        return [f"message of {factor.name}"]
    positions = [
        position
        for position, reference in enumerate(factor.references)
        if reference.array.name == variable.name
    ]
    return [_product_term(factor, position, letters, condition) for position in positions]


def _product_term(factor: EnergyFactor, place: int, letters: Sequence[str], condition: str) -> str:
    """The product of all references but the target, in the letters of the target's entries."""
    others = [reference for k, reference in enumerate(factor.references) if k != place]
    others.sort(key=lambda reference: isinstance(reference.array, Variable))
    target = factor.references[place].pattern
    renaming = _renaming(target, letters, [reference.pattern for reference in others])
    product = " ".join(_reference_text(reference, renaming or {}) for reference in others) or "1"
    if condition:
        product += " where " + re.sub(
            r"[A-Za-z_]\w*", lambda m: _shift_letter(m.group(), 0, renaming or {}), condition
        )
    if renaming is None:
        product += f" at [{target}]"
    return f"({product})" if condition or renaming is None else product


def _target_letters(variable: Variable, factors: Sequence[EnergyFactor]) -> tuple[str, ...]:
    """Letters for the axes of an updated variable, taken from its factors; empty if no factor is a
    product."""
    patterns = [
        r.pattern
        for f in factors
        if f.product() is not None
        for r in f.references
        if r.array.name == variable.name
    ]
    if not patterns:
        return ()
    simple = [p for p in patterns if p.plain] + [p for p in patterns if _one_letter_each(p)]
    if simple:
        return simple[0].letters
    return tuple(
        axis if axis not in variable.axes[:k] else f"{axis}{k + 1}" for k, axis in enumerate(variable.axes)
    )


def _renaming(target: Pattern, letters: Sequence[str], others: Sequence[Pattern]) -> Renaming | None:
    """Rename the letters of a factor so that ``letters`` index its target; None if that is impossible."""
    if not _one_letter_each(target):
        return None
    renaming = {
        dim.letters[0]: (letter, -dim.shift) for letter, dim in zip(letters, target.dimensions, strict=True)
    }
    all_dims = [dim for pattern in (target, *others) for dim in pattern.dimensions]
    for dim in target.dimensions:
        # letters start at 0, so a letter with only positive shifts omits the first entries
        skips_first = min(other.shift for other in all_dims if other.letters == dim.letters) > 0
        if skips_first or (
            dim.shift and any(dim.letters[0] in other.letters for other in all_dims if len(other.letters) > 1)
        ):
            return None
    old_of = {letter: old for old, (letter, _) in renaming.items()}
    for letter in [letter for letter in letters if letter not in renaming]:
        # a summed letter of the same name would clash with the target's; rename it to the letter freed in
        # exchange
        free = old_of[letter]
        while free in old_of:
            free = old_of[free]
        renaming[letter] = (free, 0)
    return renaming


def _one_letter_each(pattern: Pattern) -> bool:
    simple = all(len(dim.letters) == 1 and dim.index is None for dim in pattern.dimensions)
    return simple and len(pattern.letters) == len(pattern.dimensions)


def _reference_text(reference: Reference, renaming: Renaming) -> str:
    dimensions = [_dimension(dim, renaming) for dim in reference.pattern.dimensions]
    return reference.array.name + (f"[{' '.join(dimensions)}]" if dimensions else "")


def _dimension(dim: Dimension, renaming: Renaming) -> str:
    letters = [_shift_letter(letter, dim.shift, renaming) for letter in dim.letters]
    if dim.index is not None:
        return f"{dim.index}[{letters[0]}]"
    return letters[0] if len(letters) == 1 else f"({' '.join(letters)})"


def _shift_letter(letter: str, shift: int, renaming: Renaming) -> str:
    new, offset = renaming.get(letter, (letter, 0))
    return new + (f"{shift + offset:+d}" if shift + offset else "")


def _sum(head: str, terms: Sequence[str], indent: int, tail: str = "") -> list[str]:
    """A sum wrapped between terms, and within a term only if it is long."""
    glued = [term.replace(" ", _GLUE) if len(term) < 70 else term for term in terms]
    lines = _wrap(head, f" +{_GLUE}".join(glued) + tail.replace(" ", _GLUE), indent)
    return [line.replace(_GLUE, " ") for line in lines]


def _wrap(head: str, text: str, indent: int) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, head, " " * indent, break_long_words=False, break_on_hyphens=False)
    return [line.rstrip() for line in wrapper.wrap(text)]


def _count(number: int, word: str) -> str:
    plural = word if number == 1 else word[:-1] + "ies" if word.endswith("y") else word + "s"
    return f"{number:,} {plural}"


def _mermaid_text(text: str) -> str:
    """Escape all but letters, digits and safe punctuation as Mermaid's numeric entities."""
    return "".join(c if c.isalnum() or c in " _,.:()=+-" else f"#{ord(c)};" for c in text)


def _dot_text(text: str) -> str:
    """A quoted Graphviz string; backslashes would begin an escape sequence."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
