"""A small network of torch, trained as `model.Model` says."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from worker_lib.rl.flat import bind, numel_of, weights_of

from .data import Floats, Samples
from .model import Measure, Order, Steps

HIDDEN = 32  # units


class Network:
    """A hidden layer with ReLU, and cross-entropy; it computes on one core.

    torch starts no thread for it, so that equal arguments give equal bits.
    """

    def __init__(self, features: int, classes: int) -> None:
        torch.set_num_threads(1)
        self._shape = features, classes
        self._module = self._made()
        self.numel = numel_of(self._module)
        self._weights = np.zeros(self.numel, np.float32)
        self._gradient = np.zeros(self.numel, np.float32)
        bind(self._module, self._weights, self._gradient)

    def _made(self) -> nn.Module:
        features, classes = self._shape
        return nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

    def start(self, seed: int) -> Floats:
        """Draw parameters as torch does by default."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return weights_of(self._made())

    def solve(
        self, weights: Floats, samples: Samples, orders: Iterable[Order], steps: Steps
    ) -> Floats:
        """Train by stochastic gradient descent; see `Model`."""
        self._weights[:] = weights
        inputs, labels = torch.from_numpy(samples.inputs), torch.from_numpy(samples.labels)
        for order in orders:
            for start in range(0, len(order), steps.batch):
                rows = order[start : start + steps.batch]
                self._differentiate(inputs[rows], labels[rows])
                if steps.mu:
                    self._gradient += np.float32(steps.mu) * (self._weights - weights)
                self._weights -= np.float32(steps.rate) * self._gradient
        return self._weights.copy()

    def measure(self, weights: Floats, samples: Samples) -> Measure:
        """Measure the network; see `Model`."""
        self._weights[:] = weights
        labels = torch.from_numpy(samples.labels)
        loss, logits = self._differentiate(torch.from_numpy(samples.inputs), labels)
        correct = int((logits.argmax(dim=1) == labels).sum())
        return Measure(loss, self._gradient.astype(np.float64), correct)

    def _differentiate(
        self, inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[float, torch.Tensor]:
        """Put the gradient of the mean loss into place; return the loss and the logits."""
        self._gradient[:] = 0
        logits = self._module(inputs)
        loss = cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), logits.detach()
