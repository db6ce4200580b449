"""A derived number with its reason."""

from enum import StrEnum
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class StepGrade(StrEnum):
    """Source of the planned seconds of a step."""

    ESTIMATED = "estimated"
    OTHER_ROWS = "measured with other rows"
    MEASURED = "measured"


class Planned(BaseModel, Generic[T]):
    model_config = ConfigDict(frozen=True)

    value: T
    exact: bool
    reason: str


def exact(value: T, reason: str) -> Planned[T]:
    """Return a figure that is known exactly."""
    return Planned(value=value, exact=True, reason=reason)


def estimated(value: T, reason: str) -> Planned[T]:
    """Return a figure that is only estimated."""
    return Planned(value=value, exact=False, reason=reason)
