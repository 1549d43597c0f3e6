"""The judges, one kind a file: pass, fail or could-not-judge for each sample. Nothing is imported here."""
