"""Mutation of the cores: does any test detect that one expression of them is wrong?

    sites     the places of a module where an expression can be turned into its near opposite
    covering  which unit tests execute a line, and running only those against a mutant
    sampling  a bounded sample of mutants, each tried with its tests and then with seeds of the simulation

mutmut makes a copy of the tree with all mutants in it, and cosmic-ray writes each mutant into the tree; neither can
run the simulation. Here a mutant exists only in the process that tries it, by the import hook of the planted faults.
Survivors are explained in tests/mutation/survivors.toml.
"""
