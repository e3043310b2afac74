"""Targets with a deliberate mistake, by which tests check that the fuzzing detects failures."""
