"""Measures a global model on all devices: loss, accuracy, and how much local gradients differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .data import Federation, Floats
from .model import Model


class Quality(NamedTuple):
    """How good a global model is.

    Attributes:
        loss: mean loss over all training samples of all devices.
        accuracy: share of all test samples that are classified correctly, 0 .. 1.
        dissimilarity: mean of |g_k - g|^2, weighted by n_k, where g_k is the gradient of device k's
            loss at all its training samples, and g the mean of these. The paper's figures show
            this variance as the dissimilarity of gradients.
    """

    loss: float
    accuracy: float
    dissimilarity: float


def quality(model: Model, weights: Floats, federation: Federation) -> Quality:
    """Measure a model."""
    parts = [model.measure(weights, samples) for samples, _ in federation.devices]
    share = federation.sizes / federation.sizes.sum()
    gradients = np.array([part.gradient for part in parts])
    spread = np.square(gradients - share @ gradients).sum(axis=1)
    tests = [model.measure(weights, samples).correct for _, samples in federation.devices]
    count = sum(len(samples.labels) for _, samples in federation.devices)
    loss = float(share @ [part.loss for part in parts])
    return Quality(loss, sum(tests) / count, float(share @ spread))
