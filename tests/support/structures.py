"""The graphs of the structured-diffusion paper, random declarations, and who interacts in them by listing
every value of every letter."""

import itertools
import math
import operator

import numpy as np
import torch
from hypothesis import strategies as st

import unn
from factors import Cardinality, Clique, Depends, Multilinear

# -- the graphs of the paper ---------------------------------------------------------------------------------


def factorisation(m, n, k, products=True):
    """E = A R, the arrays laid out as in the reference masks: A[k,i], R[k,j], C[k,j,i], E[j,i]."""
    g = unn.FactorGraph("factorisation", k=k, i=m, j=n)
    A, R, E = (
        g.variable(name, axes, unn.SquaredNorm()) for name, axes in (("A", "k i"), ("R", "k j"), ("E", "j i"))
    )
    if products:
        C = g.variable("C", "k j i", unn.SquaredNorm())
        g.factor(Depends(C["k j i"], A["k i"], R["k j"]))
        g.factor(Depends(E["j i"], C["k j i"]))
    else:
        g.factor(Depends(E["j i"], A["k i"], R["k j"]))
    return g


def hierarchical(m, n, k, products=True, ordered=""):
    """The same of unknown rank K: D[k] says whether row k of R and of A is used."""
    g = factorisation(m, n, k, products)
    A, R, K = g["A"], g["R"], g.variable("K", "one", unn.BinaryEntropy())
    parent, pattern = K, "o"
    if products:
        parent, pattern = g.variable("D", "k", unn.BinaryEntropy()), "k"
        g.factor(Depends(parent["k"], K["o"], ordered=ordered))
    g.factor(Depends(A["k i"], parent[pattern]))
    g.factor(Depends(R["k j"], parent[pattern]))
    return g


def sorting(n, products=True, outputs="chain"):
    """s = P u with a permutation P; the outputs form a chain, a clique, or nothing."""
    g = unn.FactorGraph("sorting", n=n)
    u, s = g.variable("u", "n", unn.SquaredNorm()), g.variable("s", "n", unn.SquaredNorm())
    P = g.variable("P", "i n", unn.BinaryEntropy())
    if products:
        C = g.variable("C", "i n", unn.SquaredNorm())
        g.factor(Depends(C["i j"], P["i j"], u["j"]))
        g.factor(Depends(s["i"], C["i j"]))
    else:
        g.factor(Depends(s["i"], P["i j"], u["j"]))
    g.factor(Clique(P["i j"], each="i"))
    g.factor(Clique(P["i j"], each="j"))
    if outputs == "chain":
        g.factor(Clique(s["i+1"], s["i"], each="i"))
    elif outputs == "clique":
        g.factor(Clique(s["i"]))
    return g


def sudoku(rows, columns, kind=Clique):
    """Blocks of rows x columns cells; each digit once in each row, column and block."""
    n = rows * columns
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, R=columns, C=rows)
    X = g.variable("X", "row col | digit", unn.Entropy())
    for pattern, each in (("r c v", "r"), ("r c v", "c"), ("(R r) (C c) v", "R C")):
        g.factor(kind(X[pattern], each=each if kind is Clique else f"{each} v"))
    return g


def circuit(depth, gates=True):
    """A tree of gates with two inputs each; level 0 are the inputs. Without gates, the output depends on all
    inputs."""
    g = unn.FactorGraph("circuit", two=2, **{f"n{level}": 2 ** (depth - level) for level in range(depth + 1)})
    levels = range(depth + 1) if gates else (0, depth)
    a, *others = (g.variable(f"L{level}", f"n{level} | two", unn.Entropy()) for level in levels)
    for b in others:
        g.factor(Depends(b["i v"], a["(i c) w"] if gates else a["j w"]))
        a = b
    return g


# -- random declarations -------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 4, 6)
WHERE = {None: None, "!=": operator.ne, "<": operator.lt, ">=": operator.ge}


@st.composite
def dimensions(draw, size, splits=True):
    """One dimension of a pattern for an axis of this size: letters carry their size in their name, so that
    they tie only what fits."""
    ways = ["plain"] * 3 + ["shifted"] + (["split"] if splits and size in (4, 6) else [])
    way = draw(st.sampled_from(ways))
    if way == "split":
        first = draw(st.sampled_from([2] if size == 4 else [2, 3]))
        return f"({draw(st.sampled_from('ab'))}{first} {draw(st.sampled_from('cd'))}{size // first})"
    if way == "shifted":
        return f"s{size}{draw(st.sampled_from(['-1', '+0', '+1', '+2']))}"
    return f"{draw(st.sampled_from('abcd'))}{size}"


def letters_of(references):
    return list(dict.fromkeys(letter for reference in references for letter in reference.letters))


@st.composite
def references(draw, arrays, count):
    drawn = []
    for _ in range(draw(st.integers(1, count))):
        array, sizes = draw(st.sampled_from(arrays))
        drawn.append(array[" ".join(draw(dimensions(size)) for size in sizes)])
    return drawn


@st.composite
def factors(draw, variables, parameters, name):
    """One factor among these arrays, given with the sizes of their axes."""
    kind = draw(st.sampled_from(["depends", "clique", "cardinality", "product"]))
    if kind == "depends":
        # nothing is computed by these graphs, so that no letter needs an order
        return Depends(*draw(references(variables, 3)), name=name, ordered="")
    if kind in ("clique", "cardinality"):
        places = draw(references(variables, 2 if kind == "clique" else 1))
        each = (
            " ".join(draw(st.lists(st.sampled_from(letters_of(places)), unique=True)))
            if letters_of(places)
            else ""
        )
        return (
            Clique(*places, each=each, name=name)
            if kind == "clique"
            else Cardinality(*places, each=each, name=name)
        )
    places = draw(references(variables, 2))
    letters, where = letters_of(places), None
    if len(letters) > 1:
        relation = draw(st.sampled_from(list(WHERE)))
        where = relation and f"{letters[0]} {relation} {letters[-1]}"
    parameter = draw(references(parameters, 1)) if draw(st.booleans()) else []
    return Multilinear(*places, *parameter, where=where, name=name)


@st.composite
def declarations(draw, most=3):
    """A graph of one to three variables and up to ``most`` factors: splits, shifts, diagonals, cliques,
    conditions, overlaps, bars."""
    sizes = {f"{letter}{size}": size for letter in "abcd" for size in SIZES}
    names = {f"n{size}": size for size in SIZES}
    g = unn.FactorGraph("random", **sizes, **names)
    arrays = []
    for name in "XYZ"[: draw(st.integers(1, 3))]:
        own = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=2))
        axes = [f"n{size}" for size in own]
        if draw(st.booleans()):
            axes.insert(draw(st.integers(1, len(axes))), "|")
        arrays.append((g.variable(name, " ".join(axes), unn.SquaredNorm()), own))
    parameters = [(g.parameter("W", "n2 n3", init="ones"), (2, 3))]
    for number in range(draw(st.integers(1, most))):
        g.factor(draw(factors(arrays, parameters, f"factor {number}")))
    return g


# -- enumeration ---------------------------------------------------------------------------------------------


def node_places(graph):
    """By variable, its first node and the sizes of its node axes."""
    places, start = {}, 0
    for name, variable in graph.variables.items():
        axes = variable.node_axes or variable.axes
        shape = tuple(graph.sizes[axis] for axis in axes)
        places[name] = start, shape
        start += math.prod(shape)
    return places, start


def terms_of_factor(graph, factor):
    """All values of the letters at which every reference lies inside its array, with the index along each
    axis of each reference."""
    sizes = {letter: graph.sizes.get(letter, 0) for letter in letters_of(factor.references)}
    for reference in factor.references:
        for axis, dim in zip(reference.array.axes, reference.pattern.dimensions, strict=True):
            if len(dim.letters) == 1:
                sizes[dim.letters[0]] = max(sizes[dim.letters[0]], graph.sizes[axis] - dim.shift)
    for values in itertools.product(*(range(size) for size in sizes.values())):
        at = dict(zip(sizes, values, strict=True))
        places = [place_of(graph, reference, at) for reference in factor.references]
        if None not in places and holds(factor, at):
            yield at, places


def place_of(graph, reference, at):
    """The index along each axis, or None outside of the array."""
    index = []
    for axis, dim in zip(reference.array.axes, reference.pattern.dimensions, strict=True):
        along = 0
        for letter in dim.letters:
            if len(dim.letters) > 1 and at[letter] >= graph.sizes[letter]:
                return None
            along = along * graph.sizes.get(letter, 0) + at[letter]
        along += dim.shift
        if not 0 <= along < graph.sizes[axis]:
            return None
        index.append(along)
    return tuple(index)


def holds(factor, at):
    where = getattr(factor, "where", None)
    if where is None:
        return True
    left, relation, right = where.split()
    return bool(WHERE[relation](at[left], at[right]))


def enumerated(graph, directed=False):
    """Who sees whom, shape ``(nodes, nodes)``, boolean; with ``directed``, parents do not see their
    children."""
    starts, count = node_places(graph)
    sees = np.eye(count, dtype=bool)

    def node(reference, index):
        start, shape = starts[reference.array.name]
        return start + int(np.ravel_multi_index(index[: len(shape)], shape))

    for factor in graph.factors.values():
        variables = [k for k, r in enumerate(factor.references) if r.array.name in starts]
        groups = {}
        for at, places in terms_of_factor(graph, factor):
            nodes = [node(factor.references[k], places[k]) for k in variables]
            if isinstance(factor, Depends):
                for parent in nodes[1:]:
                    sees[nodes[0], parent] = True
                    sees[parent, nodes[0]] |= not directed
            elif isinstance(factor, Multilinear):
                for i, j in itertools.product(nodes, nodes):
                    sees[i, j] = True
            else:
                groups.setdefault(tuple(at[letter] for letter in factor.each), set()).update(nodes)
        for group in groups.values():
            sees[np.ix_(sorted(group), sorted(group))] = True
    return torch.from_numpy(sees)
