"""Small problems of inference that together use everything the engine does, to be run on any device and
compared with the CPU."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import unn
from factors import Conv2d, Directed, Implicit, Multilinear
from unn.regularizers import (
    L1,
    Ball,
    BinaryEntropy,
    Box,
    Entropy,
    LayerNorm,
    NonNegative,
    Regularizer,
    RMSNorm,
    SignedEntropy,
    SimplexNorm,
    SquaredNorm,
    SubsetNorm,
    TsallisEntropy,
)

BATCH = 4

REGULARIZERS: dict[str, Callable[[], Regularizer]] = {
    "SquaredNorm": SquaredNorm,
    "NonNegative": NonNegative,
    "BinaryEntropy": BinaryEntropy,
    "SignedEntropy": SignedEntropy,
    "Entropy": Entropy,
    "Entropy, hot": lambda: Entropy(temperature=3.0),
    "SimplexNorm": SimplexNorm,
    "TsallisEntropy": TsallisEntropy,
    "Box": lambda: Box(-0.5, 2.0),
    "Ball": Ball,
    "LayerNorm": LayerNorm,
    "RMSNorm": RMSNorm,
    "SubsetNorm": lambda: SubsetNorm(2),
    "L1": lambda: L1(0.3),
}


@dataclass
class Case:
    """One problem.

    Attributes:
        graph: the declaration with its parameters.
        given: what is observed.
        want: a variable whose last value gradients are taken of.
        order, iterations: as in ``infer``.
        initial, lengths, dropout: as in ``infer``.
        waits: must the engine read values to run it, whatever it is told?
    """

    graph: unn.FactorGraph
    given: dict[str, Tensor | unn.Partial]
    want: str
    order: object
    iterations: int = 3
    initial: dict[str, Tensor | str] = field(default_factory=dict)
    lengths: dict[str, Tensor] = field(default_factory=dict)
    dropout: dict[str, Tensor | float] = field(default_factory=dict)
    waits: bool = False

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Case":
        """A copy somewhere else, or of another dtype; the nodes of blocks stay where they are, since the
        engine moves them."""

        def move(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None)

        given = {
            name: unn.Partial(move(x.value), move(x.mask)) if isinstance(x, unn.Partial) else move(x)
            for name, x in self.given.items()
        }
        initial, lengths, dropout = (
            tree_map_only(Tensor, move, values) for values in (self.initial, self.lengths, self.dropout)
        )
        graph = copy.deepcopy(self.graph).to(device=device, dtype=dtype)
        return replace(self, graph=graph, given=given, initial=initial, lengths=lengths, dropout=dropout)

    def infer(self) -> unn.Solution:
        """The whole result."""
        return unn.infer(
            self.graph,
            self.given,
            order=self.order,
            iterations=self.iterations,
            initial=self.initial or None,
            lengths=self.lengths or None,
            dropout=self.dropout or None,
        )

    def unrolled(self, **options: object) -> Callable[[], Tensor]:
        """The value of what is wanted, by a network that is made once."""
        net = unn.Unrolled(
            self.graph,
            list(self.given),
            self.want,
            self.order,
            self.iterations,
            self.initial or None,
            self.dropout or None,
            **options,
        )
        return lambda: net(*self.given.values(), lengths=self.lengths or None)

    def gradients(self) -> dict[str, Tensor]:
        """Of a nonlinear function of what is wanted, with respect to all parameters."""
        out = self.unrolled()()
        # a fixed slope, so that sums that are constant on a simplex do not hide everything
        slope = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
        names, parameters = zip(*self.graph.named_parameters(), strict=True)
        gradients = torch.autograd.grad((out * slope).sum(), parameters, allow_unused=True)
        return {
            name: torch.zeros_like(p) if d is None else d
            for name, p, d in zip(names, parameters, gradients, strict=True)
        }


def results(out: unn.Solution) -> dict[str, Tensor]:
    """All tensors of a result by name."""
    tensors = {f"value of {name}": x for name, x in out.values.items()}
    tensors |= {f"pre-activation of {name}": x for name, x in out.preactivations.items()}
    return tensors | {"energy": out.energy}


def check_close(
    ours: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float, device: torch.device
) -> None:
    """Tensors by name: on the device, of the shapes expected, and equal to a share of the largest entry of
    each.

    Args:
        ours: found on the device.
        expected: of any dtype, on the CPU.
        tolerance: the share.
        device: where ours must lie.
    """
    assert ours.keys() == expected.keys()
    for name, x in expected.items():
        y = ours[name]
        assert y.device == device, f"{name} is on {y.device}"
        assert y.shape == x.shape, f"{name}: {tuple(y.shape)}, expected {tuple(x.shape)}"
        x, y = x.detach().double(), y.detach().cpu().double()
        finite = x.isfinite()
        # infinite energies, of what lies outside its domain, are so on both
        assert torch.equal(x[~finite], y[~finite]), f"{name}: infinite entries differ"
        largest = float(x[finite].abs().max()) if finite.any() else 1.0
        distance = float((x[finite] - y[finite]).abs().max()) / max(largest, 1e-3) if finite.any() else 0.0
        # written so that NaN fails too
        assert distance <= tolerance, (
            f"{name} differs by {distance:.2g} of its largest entry, more than {tolerance:g}"
        )


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _mlp() -> unn.FactorGraph:
    g = unn.FactorGraph("mlp", pixel=6, hidden=5, label=3)
    X, H, Y = (
        g.variable("X", "pixel", SignedEntropy()),
        g.variable("H", "hidden", SignedEntropy()),
        g.variable("Y", "label", Entropy()),
    )
    g.factor(Multilinear(H["h"], g.parameter("W", "hidden pixel", init=0.5)["h x"], X["x"]))
    g.factor(Multilinear(Y["c"], g.parameter("V", "label hidden", init=0.5)["c h"], H["h"]))
    g.factor(Multilinear(g.parameter("b", "hidden", init=0.5)["h"], H["h"]))
    return g


def mlp_forward() -> Case:
    return Case(_mlp(), {"X": _noise(BATCH, 6).tanh()}, "Y", ["H", "Y"])


def mlp_reverse() -> Case:
    return Case(_mlp(), {"Y": torch.eye(3, dtype=torch.float64)}, "X", ["H", "X"], initial={"X": "uniform"})


def mlp_in_part() -> Case:
    seen = unn.Partial(_noise(BATCH, 6).tanh(), torch.arange(BATCH * 6).reshape(BATCH, 6) % 3 > 0)
    return Case(_mlp(), {"X": seen}, "X", unn.ForwardBackward(["H", "Y"], last="X"))


def mlp_rows_in_part() -> Case:
    """Whole batch elements, and a start that is a tensor."""
    seen = unn.Partial(
        torch.eye(3, dtype=torch.float64)[[0, 2, 1, 0]], torch.tensor([True, False, True, False])
    )
    return Case(
        _mlp(),
        {"X": _noise(BATCH, 6).tanh(), "Y": seen},
        "Y",
        ["H", "Y"],
        initial={"H": 0.3 * torch.ones(BATCH, 5, dtype=torch.float64)},
    )


def dropout() -> Case:
    kept = (torch.rand(BATCH, 5, dtype=torch.float64) > 0.3).double() / 0.7
    return Case(_mlp(), {"X": _noise(BATCH, 6).tanh()}, "Y", ["H", "Y"], dropout={"H": kept})


def _images(stride: int, padding: int, dilation: int, groups: int) -> unn.FactorGraph:
    g = unn.FactorGraph("images", channel=2, row=9, column=9, feature=4, block=2 // groups)
    X, H = (
        g.variable("X", "channel row column", SignedEntropy()),
        g.variable("H", "feature row1 column1", SignedEntropy()),
    )
    Y = g.variable("Y", "label", Entropy())
    W = g.parameter("W", "feature block u v", init=0.2 * _noise(4, 2 // groups, 3, 3).float())
    g.factor(Conv2d(H, W, X, stride=stride, padding=padding, dilation=dilation, groups=groups))
    size = (9 + 2 * padding - 2 * dilation - 1) // stride + 1
    g.factor(
        Multilinear(
            Y["y"],
            g.parameter("V", "label flat", init=0.05 * _noise(3, 4 * size * size).float())["y (c i j)"],
            H["c i j"],
        )
    )
    g.factor(Multilinear(g.parameter("b", "feature", init=0.5)["c"], H["c i j"]))
    return g


def convolution_forward() -> Case:
    return Case(
        _images(2, 0, 1, 1), {"X": _noise(BATCH, 2, 9, 9).tanh()}, "Y", unn.ForwardBackward(["H", "Y"])
    )


def convolution_reverse() -> Case:
    return Case(_images(2, 1, 1, 1), {"Y": torch.eye(3, dtype=torch.float64)}, "X", ["H", "X"])


def convolution_in_groups() -> Case:
    return Case(_images(1, 1, 2, 2), {"X": _noise(BATCH, 2, 9, 9).tanh()}, "Y", ["H", "Y"])


def attention() -> Case:
    """Ragged, with missing rows and a constant that is given."""
    d, length = 6, 5
    g = unn.FactorGraph("attention", d=d)
    X = g.variable("X", "n d", SquaredNorm())
    Q, K, V, H = (g.variable(name, "n e", SquaredNorm()) for name in "QKVH")
    S = g.variable("S", "n m", Entropy(temperature=math.sqrt(d), over="m"))
    P = g.constant("P", "n d")
    for variable in (Q, K, V):
        W = g.parameter(f"W_{variable.name}", "e d", init=0.2 * _noise(d, d).float())
        g.factor(Multilinear(variable["n e"], W["e d"], X["n d"]))
        g.factor(Multilinear(variable["n e"], W["e d"], P["n d"]))
    g.factor(Multilinear(S["n m"], Q["n e"], K["m e"]))
    g.factor(Multilinear(H["n e"], S["n m"], V["m e"]))
    seen = unn.Partial(_noise(BATCH, length, d), torch.arange(length).expand(BATCH, -1) != 1)
    return Case(
        g,
        {"X": seen, "P": _noise(length, d)},
        "X",
        unn.ForwardBackward(["Q", "K", "V", "S", "H"], last="X"),
        iterations=2,
        lengths={"n": torch.tensor([5, 3, 2, 5])},
    )


def sequence() -> Case:
    """A chain of tags that meets itself, shifted and ragged."""
    g = unn.FactorGraph("tags", d=3, label=2)
    words, tags = g.variable("words", "n d", SquaredNorm()), g.variable("tags", "n | label", Entropy())
    g.factor(Multilinear(tags["i c"], g.parameter("E", "label d", init=0.5)["c d"], words["i d"]))
    g.factor(Multilinear(tags["i a"], g.parameter("T", "label other", init=1.0)["a b"], tags["i+1 b"]))
    return Case(
        g,
        {"words": _noise(BATCH, 6, 3)},
        "tags",
        ["tags"],
        initial={"tags": "uniform"},
        lengths={"n": torch.tensor([6, 2, 5, 3])},
    )


def _grid() -> unn.FactorGraph:
    g = unn.FactorGraph("grid", row=4, column=5)
    s, f = g.variable("s", "row column", SignedEntropy()), g.variable("f", "row column", SquaredNorm())
    g.factor(Multilinear(s["i j"], s["i+1 j"], g.parameter("down", "", init=torch.tensor(0.4))[""]))
    g.factor(Multilinear(s["i j"], s["i j+1"], g.parameter("across", "", init=torch.tensor(0.3))[""]))
    g.factor(Multilinear(s["i j"], g.parameter("strength", "", init=torch.tensor(0.8))[""], f["i j"]))
    return g


def grid() -> Case:
    return Case(_grid(), {"f": _noise(BATCH, 4, 5)}, "s", ["s"])


def grid_blocks() -> Case:
    """The colours by hand, as nodes on the CPU."""
    even = (torch.arange(4)[:, None] + torch.arange(5)) % 2 == 0
    return Case(_grid(), {"f": _noise(BATCH, 4, 5)}, "s", [unn.Block("s", even), unn.Block("s", ~even)])


def blocks_of_hidden_units() -> Case:
    """Some nodes of a variable that does not meet itself."""
    first = torch.arange(5) < 2
    return Case(
        _mlp(), {"X": _noise(BATCH, 6).tanh()}, "Y", [unn.Block("H", first), "Y", unn.Block("H", ~first), "Y"]
    )


def edges() -> Case:
    """Spins coupled along a list of edges, one of them twice."""
    g = unn.FactorGraph("edges", node=6, value=2)
    s, f = g.variable("s", "node | value", Entropy()), g.variable("f", "node value", SquaredNorm())
    g.index("src", "edge", [0, 1, 2, 3, 4, 0, 0], into="node")
    g.index("dst", "edge", [1, 2, 3, 4, 5, 5, 5], into="node")
    g.factor(Multilinear(g.parameter("J", "edge", init=0.5)["e"], s["src[e] v"], s["dst[e] v"]))
    g.factor(Multilinear(s["i v"], f["i v"]))
    return Case(g, {"f": _noise(BATCH, 6, 2)}, "s", ["s"], initial={"s": "uniform"})


def patterns() -> Case:
    """A condition, a diagonal, a split and a bias without another operand."""
    g = unn.FactorGraph("patterns", n=4, d=3, block=2, inside=2)
    A, B = g.variable("A", "n m", BinaryEntropy()), g.variable("B", "n d", NonNegative())
    coarse = g.variable("C", "block d", Box())
    g.factor(Multilinear(A["i j"], B["i d"], g.parameter("W", "d", init="ones")["d"], where="i < j"))
    g.factor(Multilinear(A["i i"], g.parameter("u", "n", init=0.5)["i"]))
    g.factor(Multilinear(B["(block inside) d"], coarse["block d"]))
    g.factor(Multilinear(B["i d"]))
    return Case(
        g,
        {"C": _noise(BATCH, 2, 3).clamp(-1, 1)},
        "A",
        ["B", "A"],
        initial={"A": torch.full((BATCH, 4, 4), 0.5, dtype=torch.float64)},
    )


def directed_forward() -> Case:
    return Case(_directed(), {"X": _noise(BATCH, 4)}, "Z", ["Y", "Z"])


def directed_reverse() -> Case:
    """The parents by the inner solver."""
    return Case(_directed(), {"Z": _noise(BATCH, 2)}, "X", ["Y", "X"], waits=True)


def _directed() -> unn.FactorGraph:
    g = unn.FactorGraph("directed", x=4, y=3, z=2)
    X, Y, Z = (
        g.variable("X", "x", SquaredNorm()),
        g.variable("Y", "y", SignedEntropy()),
        g.variable("Z", "z", SquaredNorm()),
    )
    g.factor(
        Directed(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)), Y, X)
    )
    g.factor(Multilinear(Z["z"], g.parameter("V", "z y", init=0.5)["z y"], Y["y"]))
    return g


def implicit() -> Case:
    g = unn.FactorGraph("implicit", n=4)
    X, Y = g.variable("X", "n", SquaredNorm()), g.variable("Y", "n", Entropy())
    w = g.parameter("w", "n", init="ones")
    g.factor(
        Implicit(
            lambda x, y, scale: ((x - y) * scale).cosh().sum(1), X["i"], Y["i"], w["i"], bounded_below=True
        )
    )
    return Case(g, {"X": _noise(BATCH, 4)}, "Y", ["Y"], waits=True)


CASES: dict[str, Callable[[], Case]] = {
    function.__name__.replace("_", " "): function
    for function in (
        mlp_forward,
        mlp_reverse,
        mlp_in_part,
        mlp_rows_in_part,
        dropout,
        convolution_forward,
        convolution_reverse,
        convolution_in_groups,
        attention,
        sequence,
        grid,
        grid_blocks,
        blocks_of_hidden_units,
        edges,
        patterns,
        directed_forward,
        directed_reverse,
        implicit,
    )
}


def make(name: str, dtype: torch.dtype = torch.float64) -> Case:
    """The case with this name, always with the same numbers, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return CASES[name]().to(dtype=dtype)
