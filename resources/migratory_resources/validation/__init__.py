"""From the text of a file, or from a custom resource, to a model: every error at once, in one form."""
