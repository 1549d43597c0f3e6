"""The algorithms, one file each, and which config class asks for which."""

from rlctl.algos.base import Algorithm, Counts
from rlctl.algos.cgpo import CGPO
from rlctl.algos.ppo import PPO
from rlctl.algos.rloo import RLOO
from rlctl.config.schema import AlgoConfig, CGPOConfig, PPOConfig, RLOOConfig

ALGORITHMS: dict[type[AlgoConfig], type] = {PPOConfig: PPO, RLOOConfig: RLOO, CGPOConfig: CGPO}


def build(config: AlgoConfig) -> Algorithm:
    """The algorithm a config asks for."""
    algorithm: Algorithm = ALGORITHMS[type(config)](config)
    return algorithm


__all__ = ["ALGORITHMS", "Algorithm", "Counts", "build"]
