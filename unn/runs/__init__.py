"""Run folders: configuration, metrics, checkpoints and weights of a training run.

A run folder holds ``config.json``, ``metrics.jsonl``, ``checkpoints/``, ``plots/`` and, once training has finished, ``model.safetensors``.
Every file is replaced whole or only ever appended to; nothing that is read back can execute.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
