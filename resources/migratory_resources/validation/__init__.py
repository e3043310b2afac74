"""Validation: from the text of a file, or from a custom resource, to a model. Every error is reported at once, in one
form."""
