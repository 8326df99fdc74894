"""Names of axes, and of letters in the patterns of factors, for recognised templates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..graph.disjoint_sets import DisjointSets
from .recognise import AxisPattern, Template
from .tape import Nodes, Recorded, Tape

Pairs = tuple[Nodes, Nodes]
Axis = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Link:
    """The relation of a variable to another or to itself.

    Attributes:
        one: name of the child, or of a variable with jointly drawn entries.
        other: name of the parent, or of the same variable.
        templates: patterns of both.
        rest: pairs without a pattern, flat indices.
        directed: False for jointly drawn entries.
    """

    one: str
    other: str
    templates: Sequence[Template]
    rest: Pairs
    directed: bool = True


@dataclass(frozen=True, eq=False)
class Written:
    """The textual form of a factor.

    Attributes:
        references: names and patterns of the variables.
        each: letters that index cliques.
        pairs: listed pairs of nodes, if any.
        directed: False for jointly drawn entries.
        ordered: letters whose values are not exchangeable.
    """

    references: Sequence[tuple[str, str]]
    each: str = ""
    pairs: Pairs | None = None
    directed: bool = True
    ordered: str = ""


@dataclass
class Names:
    """Names of axes and letters; axes indexed by the same loops have the same name.

    Attributes:
        tape: tape with the variables.
        axes: name of each axis, by variable and position.
        sizes: sizes of axes and of letters that split them, by name.
    """

    tape: Tape
    axes: dict[Axis, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    _options: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tape: Tape, links: Sequence[Link], wanted: Mapping[int, str] | None = None) -> Names:
        """Name axes; those that a factor ties without a shift are one, unless they belong to the same
        variable.

        Args:
            tape: tape of a complete run.
            links: relations of its variables.
            wanted: names of axes by their size; letters for all other axes.
        """
        names = cls(tape)
        wanted = wanted or {}
        classes = _tied_axes(links)
        named: dict[Axis, str] = {}
        # the variable with the most axes reflects the most loops
        for variable in sorted(tape.variables.values(), key=lambda variable: -variable.nodes.ndim):
            for k, size in enumerate(variable.nodes.shape):
                root = classes.root((variable.name, k))
                name = named.get(root) or wanted.get(size)
                if name is None or name in [names.axes[variable.name, j] for j in range(k)]:
                    own = [wanted[size]] if size in wanted else "ijklmnopqrstuvwxyz"
                    name = names._unused_name(own, names.sizes)
                named.setdefault(root, name)
                names.sizes[name] = size
                names.axes[variable.name, k] = name
        return names

    def declaration(self, variable: Recorded) -> str:
        """The axes of a variable as text, with a feature axis for its options."""
        axes = " ".join(self.axes[variable.name, k] for k in range(variable.nodes.ndim))
        count = variable.values.options
        if count and count not in self._options:
            self._options[count] = self._unused_name(["option"], self.sizes)
            self.sizes[self._options[count]] = count
        return f"{axes} | {self._options[count]}" if count else axes

    def factors(self, links: Sequence[Link]) -> list[Written]:
        """The factors of the links of one child: one for all plain patterns, one per other pattern, and
        lists."""
        written = []
        plain = [
            (link.other, template)
            for link in links
            for template in link.templates
            if link.directed and template.plain
        ]
        if plain:
            written.append(self._depends(links[0].one, plain))
        for link in links:
            for template in link.templates:
                if not link.directed:
                    written.append(self._clique(link.one, template))
                elif not template.plain:
                    written.append(self._depends(link.one, [(link.other, template)]))
            if len(link.rest[0]):
                written.append(self._listed(link))
        return written

    def ordered_factor(self, name: str, axes: Collection[int]) -> Written:
        """A factor of a single variable that declares some of its axes as ordered."""
        used: set[str] = set()
        patterns = [AxisPattern((k,)) for k in range(self.tape.variables[name].nodes.ndim)]
        text, letters = self._pattern(name, patterns, {}, None, used)
        return Written([(name, text)], ordered=" ".join(letters[k] for k in sorted(axes)))

    def _depends(self, child: str, parents: Sequence[tuple[str, Template]]) -> Written:
        used: set[str] = set()
        patterns = parents[0][1].child
        first = self._pattern(child, patterns, {}, parents[0][1], used)
        references = [(child, first[0])]
        for parent, template in parents:
            # plain templates differ in the numbering of letters, not in their patterns
            shared = {
                letter: first[1][x]
                for a, b in zip(template.child, patterns)
                for letter, x in zip(a.letters, b.letters)
            }
            references.append((parent, self._pattern(parent, template.parent, shared, template, used)[0]))
        return Written(references)

    def _clique(self, name: str, template: Template) -> Written:
        text, letters = self._pattern(name, template.child, {}, template, set())
        each = [letters[x] for pattern in template.child for x in pattern.letters if x in template.tied]
        return Written([(name, text)], each=" ".join(each), directed=False)

    def _listed(self, link: Link) -> Written:
        used: set[str] = set()
        references = []
        for name in (link.one, link.other):
            patterns = [AxisPattern((k,)) for k in range(self.tape.variables[name].nodes.ndim)]
            references.append((name, self._pattern(name, patterns, {}, None, used)[0]))
        return Written(references, pairs=link.rest, directed=link.directed)

    def _pattern(
        self,
        name: str,
        patterns: Sequence[AxisPattern],
        shared: Mapping[int, str],
        template: Template | None,
        used: set[str],
    ) -> tuple[str, dict[int, str]]:
        """The pattern of a variable, and the names of its letters.

        Args:
            name: name of the variable.
            patterns: place of each axis.
            shared: names of letters shared with other references, by number.
            template: template with the sizes of letters; None if no axis is split.
            used: names of letters in this factor; extended by those of this pattern.
        """
        letters = dict(shared)
        dimensions = []
        for k, pattern in enumerate(patterns):
            for x in pattern.letters:
                if x not in letters and len(pattern.letters) == 1:
                    letters[x] = self._unused_name([self.axes[name, k], *"ijklmnopqrstuvwxyz"], used)
                elif x not in letters:
                    assert template is not None
                    # no axis has this size, so it is declared under an unused name
                    letters[x] = self._unused_name("cdefgh", used | set(self.sizes))
                    self.sizes[letters[x]] = template.sizes[x]
                used.add(letters[x])
            text = " ".join(letters[x] for x in pattern.letters)
            dimensions.append(
                f"({text})"
                if len(pattern.letters) > 1
                else text + (f"+{pattern.shift}" if pattern.shift else "")
            )
        if self.tape.variables[name].values.options:
            # features of different nodes are unrelated
            dimensions.append(self._unused_name("vw", used))
            used.add(dimensions[-1])
        return " ".join(dimensions), letters

    @staticmethod
    def _unused_name(wanted: Sequence[str], used: Mapping[str, int] | set[str]) -> str:
        """The first unused name, numbered if necessary."""
        free = (name + number for number in ("", *map(str, range(2, len(used) + 3))) for name in wanted)
        return next(name for name in free if name not in used)


def _tied_axes(links: Sequence[Link]) -> DisjointSets[Axis]:
    """Classes of axes that factors tie without a shift."""
    classes = DisjointSets[Axis]()
    for link in links:
        for template in link.templates:
            first: dict[int, Axis] = {}
            for name, patterns in ((link.one, template.child), (link.other, template.parent)):
                for k, pattern in enumerate(patterns):
                    if len(pattern.letters) == 1 and not pattern.shift:
                        classes.merge((name, k), first.setdefault(pattern.letters[0], (name, k)))
    return classes
