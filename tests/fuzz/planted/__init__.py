"""Targets with a mistake in them, so that the fuzzing itself can be seen to fail."""
