"""The algorithms, one file each, and which config class asks for which."""

from typing import Any

from rlctl.algos.base import Algorithm, Counts
from rlctl.algos.cgpo import CGPO
from rlctl.algos.custom import Custom
from rlctl.algos.ppo import PPO
from rlctl.algos.rloo import RLOO
from rlctl.config.schema import AlgoConfig, CGPOConfig, CustomAlgoConfig, PPOConfig, RLOOConfig

ALGORITHMS: dict[type[AlgoConfig], type] = {PPOConfig: PPO, RLOOConfig: RLOO, CGPOConfig: CGPO, CustomAlgoConfig: Custom}


def build(config: AlgoConfig) -> Algorithm:
    """The algorithm a config asks for.

    Raises:
        ConfigError: a class of the user's cannot be imported, or is no algorithm.
    """
    algorithm: Algorithm = ALGORITHMS[type(config)](config)
    return algorithm


def state_of(algorithm: Algorithm) -> dict[str, Any]:
    """What a run must remember of its algorithm; the built-in ones keep nothing."""
    return algorithm.state() if isinstance(algorithm, Custom) else {}


def restore(algorithm: Algorithm, state: dict[str, Any]) -> None:
    """Take back what `state_of` gave."""
    if isinstance(algorithm, Custom):
        algorithm.restore(state)


__all__ = ["ALGORITHMS", "Algorithm", "Counts", "build", "restore", "state_of"]
