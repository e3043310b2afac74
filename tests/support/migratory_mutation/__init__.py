"""Mutation of the cores: does any test notice when one expression of them is wrong?

    sites     every place in a module where something can be turned into its near opposite
    covering  which unit tests execute a line, and running just those with other sources in place of the tree's
    sampling  a bounded sample of mutants, each against its tests and then against seeds of the simulation

mutmut and cosmic-ray do the same for projects of another shape: the one makes a copy of the tree with all mutants in
it, the other writes each into the tree. Neither can ask the simulation. Here a mutant lives only in the process that
tries it, by the import hook of the planted faults. Survivors are explained in tests/mutation/survivors.toml.
"""
