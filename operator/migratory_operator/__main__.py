"""`python -m migratory_operator`: run the operator."""

from migratory_operator.main import main

main()
