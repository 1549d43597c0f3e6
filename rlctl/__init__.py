"""rlctl: online RLHF fine-tuning of language models from one command. Importing it imports nothing heavy."""

__version__ = "0.1.0"
