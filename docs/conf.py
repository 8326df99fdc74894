"""The documentation site: ``python -m sphinx -W --keep-going -j 2 -b html docs docs/_build/html``."""

import os
import sys
from pathlib import Path

import unn

project = "unn"
author = "The authors of unn"
release = version = unn.__version__
copyright = author

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "unn"
html_static_path = ["_static"]
html_css_files = ["unn.css"]
html_theme_options = {"sidebar_hide_name": False}
html_show_copyright = False
html_show_sourcelink = False

# every cell runs at build time; outputs are the same each time because every page seeds what it draws
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_show_tb = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
os.environ.setdefault("OMP_NUM_THREADS", "1")
# cells of shell commands call the installed unn
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
