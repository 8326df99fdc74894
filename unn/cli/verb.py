"""Verbs: the commands of the program. Each is a frozen dataclass whose fields are its options.

A package adds a verb by an entry point of the group ``unn.verbs``. Importing a verb should not import torch.
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
    """Output of a command, as text and as data.

    Attributes:
        lines: lines of text.
        data: content of ``--json``.
        content: raw bytes to print before the lines; None for none.
        code: exit code.
    """

    lines: tuple[str, ...]
    data: Mapping[str, Any]
    content: bytes | None = None
    code: int = 0


class Verb:
    """A command; a subclass is a frozen dataclass, and its docstring is the help text.

    It is not an ABC, because the parser checks types of classes with a metaclass more slowly.

    Attributes:
        name: name on the command line.
    """

    name: ClassVar[str]

    def __call__(self) -> Answer:
        """Run the command.

        Raises:
            UnnError: for errors that the user can correct.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__().")


class ProblemVerb(Generic[Config]):
    """A command on a problem, with the options of the problem: ``unn VERB PROBLEM``.

    Attributes:
        name: name on the command line.
        config: configuration of the problem.
    """

    name: ClassVar[str]
    config: Config

    def __call__(self, problem: Problem) -> Answer:
        """Run the command; arguments and errors as of ``Verb``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(problem).")
