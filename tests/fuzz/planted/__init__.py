"""Targets with a deliberate mistake, to test that the fuzzing detects failures."""
