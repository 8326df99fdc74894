"""Plots of graphs, energies, metrics, matrices, images and samples, with a light and a dark theme.

No global state of matplotlib is changed. Neither torch nor matplotlib is imported before the first plot.
"""

from .adjacency import adjacency_text as adjacency_text
from .collage import save_collage as save_collage
from .corner import draw_corner as draw_corner
from .coverage import draw_coverage as draw_coverage
from .coverage import draw_local_coverage as draw_local_coverage
from .energy import draw_energy as draw_energy
from .energy import draw_energy_terms as draw_energy_terms
from .graph import draw_graph as draw_graph
from .images import draw_images as draw_images
from .matrices import draw_adjacency as draw_adjacency
from .matrices import draw_attention as draw_attention
from .measured import draw_measured as draw_measured
from .metrics import draw_metrics as draw_metrics
from .ranks import draw_ranks as draw_ranks
from .reliability import draw_reliability as draw_reliability
from .samples import Marking as Marking
from .samples import draw_samples as draw_samples
from .save import save_figure as save_figure
from .theme import DARK as DARK
from .theme import LIGHT as LIGHT
from .theme import Theme as Theme
from .theme import theme_named as theme_named
