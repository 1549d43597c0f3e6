"""The rewards, one file each. Nothing is imported here: worker processes need `importing` without torch."""
