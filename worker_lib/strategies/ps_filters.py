"""User-defined filters of a parameter server's workers: what is pushed, and what is held back.

A filter sees the values of a range before they are pushed, and says which of them go. Fewer bytes
go, as 8 for each value instead of 4 for each key. (Li et al., OSDI 2014, section 3.6.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from . import Vector

Mask = npt.NDArray[np.bool_]


class Filter(Protocol):
    """What a user may define.

    Attributes:
        keeps: what is held back is added to the next push of the same key; else it is dropped.
    """

    keeps: bool

    def pushes(self, values: Vector, start: int) -> Mask:
        """Which values are pushed: bool, as many as `values`, whose keys are those from `start`."""


@dataclass
class Small:
    """Holds back what is smaller than a threshold, until it has grown."""

    threshold: float
    keeps: ClassVar[bool] = True

    def pushes(self, values: Vector, start: int) -> Mask:  # noqa: ARG002
        """Those that are large enough."""
        return np.abs(values) >= self.threshold


@dataclass
class KKT:
    """Holds back gradients that cannot move a weight away from zero.

    With an l1 penalty the optimality (Karush-Kuhn-Tucker) conditions say that a weight of zero
    stays zero as long as its gradient is no larger than the penalty. Such gradients are not added
    to later ones: they are of weights that had not moved. (Li et al., section 5.1.)

    Attributes:
        weights: the weights as last pulled, float32 [numel]; the filter looks at them as they are.
        penalty: the weight of the l1 norm.
        slack: gradients count as larger by this, since those of the others are not known.
    """

    weights: Vector
    penalty: float
    slack: float = 0.0
    keeps: ClassVar[bool] = False

    def pushes(self, values: Vector, start: int) -> Mask:
        """Those of weights that are not zero, or may not stay so."""
        weights = self.weights[start : start + values.size]
        mask: Mask = (weights != 0) | (np.abs(values) + self.slack > self.penalty)
        return mask
