"""How many arguments a job type takes, for type checkers: see ``JobType.enqueue_many``.

A checker cannot turn the parameters of a function into a tuple. But it can compare ``bind`` with
that of a protocol, and so finds out what tuples fit: those with a value for each parameter, or for
those without a default.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

from pulsed.handler import Call

A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

MoreThanFour: TypeAlias = tuple[Any, Any, Any, Any, Any, *tuple[Any, ...]]
"""A tuple that is not compared with the parameters."""


class TakesNone(Protocol[R_co]):
    """A job type that needs no argument."""

    def bind(self, /) -> Call[R_co]:
        """Check arguments."""


class TakesOne(Protocol[A_contra, R_co]):
    """A job type that one argument is enough for."""

    def bind(self, a: A_contra, /) -> Call[R_co]:
        """Check arguments."""


class TakesTwo(Protocol[A_contra, B_contra, R_co]):
    """A job type that takes two arguments."""

    def bind(self, a: A_contra, b: B_contra, /) -> Call[R_co]:
        """Check arguments."""


class TakesThree(Protocol[A_contra, B_contra, C_contra, R_co]):
    """A job type that takes three arguments."""

    def bind(self, a: A_contra, b: B_contra, c: C_contra, /) -> Call[R_co]:
        """Check arguments."""


class TakesFour(Protocol[A_contra, B_contra, C_contra, D_contra, R_co]):
    """A job type that takes four arguments."""

    def bind(self, a: A_contra, b: B_contra, c: C_contra, d: D_contra, /) -> Call[R_co]:
        """Check arguments."""
