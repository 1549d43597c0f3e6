"""The rewards, one file each."""

from rlctl.rewards.base import Reward

__all__ = ["Reward"]
