"""The optimizers in plain NumPy, as a reference for those of the engine."""

from __future__ import annotations

import numpy as np


class Formula:
    """One array's run: ``update(g)`` is one step."""

    def __init__(self, weights, dtype, lr, weight_decay=0.0):
        self.w = weights.astype(dtype)
        self.dtype = dtype
        self.lr, self.weight_decay = lr, weight_decay
        self.t = 0
        self.a = np.zeros_like(self.w)
        self.b = np.zeros_like(self.w)

    def update(self, g):
        self.t += 1
        g = g.astype(self.dtype) + self.dtype(self.weight_decay) * self.w
        self.w -= self.dtype(self.lr) * self.direction(g)


class SGD(Formula):
    def direction(self, g):
        return g


class Momentum(Formula):
    momentum = 0.9

    def direction(self, g):
        self.a = self.momentum * self.a + g
        return self.a


class Nesterov(Momentum):
    def direction(self, g):
        return g + self.momentum * super().direction(g)


class Adagrad(Formula):
    def direction(self, g):
        self.a = self.a + g**2
        return g / (np.sqrt(self.a) + self.dtype(1e-10))


class RMSProp(Formula):
    alpha = 0.99

    def direction(self, g):
        self.a = self.alpha * self.a + (1 - self.alpha) * g**2
        return g / (np.sqrt(self.a) + self.dtype(1e-8))


class CenteredRMSProp(RMSProp):
    def direction(self, g):
        self.a = self.alpha * self.a + (1 - self.alpha) * g**2
        self.b = self.alpha * self.b + (1 - self.alpha) * g
        return g / (np.sqrt(np.maximum(self.a - self.b**2, 0)) + self.dtype(1e-8))


class Adam(Formula):
    beta1, beta2 = 0.9, 0.999

    def direction(self, g):
        self.a = self.beta1 * self.a + (1 - self.beta1) * g
        self.b = self.beta2 * self.b + (1 - self.beta2) * g**2
        m = self.a / (1 - self.beta1**self.t)
        v = self.b / (1 - self.beta2**self.t)
        return m / (np.sqrt(v) + self.dtype(1e-8))


class AdamW(Adam):
    def update(self, g):
        self.w *= self.dtype(1 - self.lr * self.weight_decay)
        decay, self.weight_decay = self.weight_decay, 0.0
        super().update(g)
        self.weight_decay = decay
