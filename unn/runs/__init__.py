"""Run folders: configuration, metrics, checkpoints and weights of a training run.

A run folder holds ``config.json``, ``metrics.jsonl``, ``checkpoints/``, ``plots/`` and, once training has
finished, ``model.safetensors``. Every file is replaced atomically or append-only; no file can execute code
when it is read.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
