"""Everything that writers of factors, regularizers, constraints and problems import, beside ``unn`` itself.

Names are imported when they are first used, so that the module of a problem loads without torch; they are listed in ``extending.pyi``.
"""

from __future__ import annotations

from importlib import import_module

_ROOMS = {
    "graph.arrays": ("Array", "Constant", "Index", "Indices", "Parameter", "Reference", "Variable"),
    "graph.factor": ("Constraint", "EnergyFactor", "Factor", "SharedMessages", "Values"),
    "graph.fusion": ("FusedMessages", "Fusion", "InferredRows"),
    "graph.interactions": (
        "Nodes", "Relation", "Shapes", "clique_relations", "listed_relation", "node_axis_count", "product_relations",
        "term_relation", "told_apart",
    ),
    "graph.patterns": ("Pattern", "parse_pattern"),
    "graph.sizes": ("LetterSizes", "SizeRule"),
    "graph.views": ("checked_views",),
    "regularizers": ("AlongAxis", "Elementwise", "LogPartition", "Regularizer", "Simplex"),
    "errors": ("suggest", "unknown"),
    "cli.problem": ("HasBaselines", "HasDemo", "Problem", "Sampleable", "TakesData", "Trained", "require"),
    "cli.verb": ("Answer", "ProblemVerb", "Verb"),
    "cli.open": ("open_trained",),
    "cli.options": ("Json", "Quiet", "RunFolder", "SamplingOptions", "Theme", "require_number", "require_rounds", "shows_progress"),
    "cli.evaluate": ("Evaluate",),
    "cli.sample": ("Sample",),
    "training.options": ("TrainingConfig", "check_ranges"),
}  # fmt: skip

_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        from .errors import unknown

        raise AttributeError("module 'unn.extending': " + unknown("name", name, __all__))
    return getattr(import_module(f"unn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
