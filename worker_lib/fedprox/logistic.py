"""Logistic regression, in NumPy, trained as `model.Model` says."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .data import Floats, Samples
from .model import Measure, Order, Steps

TINY = np.finfo(np.float32).tiny  # a probability whose logarithm is finite


class Logistic:
    """Multinomial logistic regression: softmax(x W + b), cross-entropy, float32 throughout.

    The vector is W, row by row, and then b. It starts at zeros.
    """

    def __init__(self, features: int, classes: int) -> None:
        self._shape = features + 1, classes
        self.numel = (features + 1) * classes

    def start(self, seed: int) -> Floats:  # noqa: ARG002  (convex: there is nothing to draw)
        """Return zeros."""
        return np.zeros(self.numel, np.float32)

    def solve(
        self, weights: Floats, samples: Samples, orders: Iterable[Order], steps: Steps
    ) -> Floats:
        """Train by stochastic gradient descent; see `Model`."""
        inputs, answers = self._prepared(samples)
        found = weights.reshape(self._shape).copy()
        keep = 1 - steps.rate * steps.mu
        pull = found * np.float32(steps.rate * steps.mu)
        batch = steps.batch
        for order in orders:
            xs, ys = inputs[order], answers[order]
            for i in range(0, len(order), batch):
                x = xs[i : i + batch]
                off = softmax(x @ found)
                off -= ys[i : i + batch]
                change = x.T @ off
                change *= steps.rate / len(x)
                if steps.mu:
                    found *= keep
                    found += pull
                found -= change
        return found.ravel()

    def measure(self, weights: Floats, samples: Samples) -> Measure:
        """Measure the model; see `Model`."""
        inputs, answers = self._prepared(samples)
        logits = inputs @ weights.reshape(self._shape)
        count = len(samples.labels)
        correct = int((logits.argmax(axis=1) == samples.labels).sum())
        likely = softmax(logits)
        at_label = likely[np.arange(count), samples.labels]
        loss = -float(np.log(np.maximum(at_label, TINY), dtype=np.float64).mean())
        likely -= answers
        gradient = (inputs.T @ likely).astype(np.float64).ravel() / count
        return Measure(loss, gradient, correct)

    def _prepared(self, samples: Samples) -> tuple[Floats, Floats]:
        """Return inputs with a column of ones, and labels as rows of an identity matrix."""
        ones = np.ones((len(samples.labels), 1), np.float32)
        identity = np.eye(self._shape[1], dtype=np.float32)
        return np.hstack([samples.inputs, ones]), identity[samples.labels]


def softmax(logits: Floats) -> Floats:
    """Make probabilities of logits, float32 [n, classes], in place."""
    logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= np.add.reduce(logits, axis=1, keepdims=True)
    return logits
