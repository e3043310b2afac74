"""`python -m migratory_operator`."""

from migratory_operator.main import main

main()
