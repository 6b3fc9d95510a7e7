"""User-defined filters, which choose the values that a worker pushes to parameter servers.

A filter sees the values of a range before the push and chooses some of them. A filtered push sends
8 bytes for each chosen value, instead of 4 for each key. (Li et al., OSDI 2014, section 3.6.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from .base import Vector

Mask = npt.NDArray[np.bool_]


class Filter(Protocol):
    """The interface of a filter.

    Attributes:
        keeps: true: values that are held back are added to the key's next push; false: they are
            dropped.
    """

    keeps: bool

    def pushes(self, values: Vector, start: int) -> Mask:
        """Return which values to push.

        Args:
            values: float32 [n], the values of keys start..start+n-1.
            start: key of the first value.

        Returns:
            bool [n]: true where a value is pushed.
        """


@dataclass
class Small:
    """Holds back values below a threshold until their sum over several pushes reaches it.

    Attributes:
        threshold: least absolute value to push.
    """

    threshold: float
    keeps: ClassVar[bool] = True

    def pushes(self, values: Vector, start: int) -> Mask:  # noqa: ARG002
        """Return where the absolute value reaches the threshold, bool [n]."""
        return np.abs(values) >= self.threshold


@dataclass
class KKT:
    """Holds back gradients that cannot move a weight away from zero.

    With an l1 penalty the optimality (Karush-Kuhn-Tucker) conditions say that a weight of zero
    stays zero as long as its gradient is no larger than the penalty. Such gradients are dropped,
    since their weights have not moved. (Li et al., section 5.1.)

    Attributes:
        weights: the weights as last pulled, float32 [numel]; read at every push.
        penalty: the weight of the l1 norm.
        slack: added to each gradient's absolute value, for the unknown gradients of other workers.
    """

    weights: Vector
    penalty: float
    slack: float = 0.0
    keeps: ClassVar[bool] = False

    def pushes(self, values: Vector, start: int) -> Mask:
        """Return where the weight is not zero or may be moved away from it, bool [n]."""
        weights = self.weights[start : start + values.size]
        mask: Mask = (weights != 0) | (np.abs(values) + self.slack > self.penalty)
        return mask
