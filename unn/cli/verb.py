"""Verbs: the commands of the program, one frozen dataclass each, whose fields are its options.

A package adds one by an entry point of the group ``unn.verbs``. Importing a verb should not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from .problem import Problem

Config = TypeVar("Config")


@dataclass(frozen=True)
class Answer:
    """What a command prints: lines for people, the same as data for machines.

    Attributes:
        lines: of text.
        data: for ``--json``.
        content: bytes to print as they are, before the lines; None for none.
        code: the exit code.
    """

    lines: tuple[str, ...]
    data: Mapping[str, Any]
    content: bytes | None = None
    code: int = 0


class Verb:
    """A command; a subclass is a frozen dataclass, and its docstring the help.

    It is not an ABC: of classes with a metaclass of their own the parser checks types by slower means.

    Attributes:
        name: on the command line.
    """

    name: ClassVar[str]

    def __call__(self) -> Answer:
        """Run the command.

        Raises:
            UnnError: for what the user can mend.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__().")


class ProblemVerb(Generic[Config]):
    """A command on a problem, whose configuration becomes options as well: ``unn VERB PROBLEM``.

    Attributes:
        name: on the command line.
        config: of the problem.
    """

    name: ClassVar[str]
    config: Config

    def __call__(self, problem: Problem) -> Answer:
        """Run the command; arguments and errors as of ``Verb``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(problem).")
