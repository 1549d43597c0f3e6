"""The KL coefficient over a run: fixed, or steered towards a target."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.config.schema import AlgoConfig


@dataclass
class KLController:
    """beta; with a target, the proportional controller of Ziegler et al., arXiv 1909.08593, section 2.2."""

    config: AlgoConfig
    coef: float

    @classmethod
    def of(cls, config: AlgoConfig) -> KLController:
        """A controller at the start of a run."""
        return cls(config, config.kl_coef)

    def update(self, kl: float, responses: int) -> None:
        """Take in the mean KL per response of a step of so many responses.

        e = clip(kl / target - 1, -0.2, 0.2);  beta <- beta * (1 + e * responses / horizon)
        """
        if self.config.kl_target is not None:
            error = min(0.2, max(-0.2, kl / self.config.kl_target - 1.0))
            self.coef *= max(0.0, 1.0 + error * responses / self.config.kl_horizon)
