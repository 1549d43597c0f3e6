"""The two stages before PPO on TRL's own trainers: supervised fine-tuning and a reward model. PPO knows nothing of them.

Rows become token ids here, not in TRL: as PPO presents prompts to a policy and texts to a reward model, so that each result
fits what comes next. TRL is imported in the run only; it takes seconds.
"""
