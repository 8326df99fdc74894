"""Modules by the names of variables."""

from __future__ import annotations

from torch import nn

from ..errors import DeclarationError


class ByVariable(nn.ModuleDict):
    """A ``ModuleDict`` by the names of variables, such as ``type`` or ``values``.

    ``ModuleDict`` refuses these, since they are its own attributes; modules are reached by key alone here.

    Raises:
        DeclarationError: for a variable ``training``, the state of a module.
    """

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if name == "training":
            raise DeclarationError(
                "networks have modules by the names of variables, and 'training' is the state of a module; "
                "give the variable another name."
            )
        self._modules[name] = module  # type: ignore[assignment]
