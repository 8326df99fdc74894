"""Pictures of dependency trees: arcs over words, marginals, and both as text."""

from .text import heat_text as heat_text
from .text import tree_text as tree_text
from .tree import draw_arcs as draw_arcs
from .tree import draw_marginals as draw_marginals
