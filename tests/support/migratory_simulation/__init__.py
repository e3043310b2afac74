"""A deterministic simulation of a whole cluster: the production cores over a modelled world.

Start with `world.py`, which puts everything together and runs one seed. Below it:

    scheduler    the virtual clock: everything that happens is a callback at a moment
    options      what a seed decides: shape of the cluster, load, and the plan of faults (`plans`, `faults`)
    injector     carries the faults out, `rollouts` those that take many steps
    zookeeper    the ensemble: sessions, ephemerals, one-shot watches, transactions, lost replies
    network      the links between brokers: ordered, delayed, broken, cut one way or both, clogged
    connections  of clients: bytes both ways
    process      one life of a broker: a real `Logic`, real `Edge`s, and what carries out their effects
    clients      publishers and subscribers; `load` says what they do, and when
    ledger       the invariants, checked from outside: what was shown to whom
    probe        the invariants, checked from inside: copies, promises, coordinators (`reigns`), receipts (`told`),
                 publishers that are forgotten (`forgetting`)
    aftermath    what must be true when a run has come right: nothing left over, all brokers alike
    coverage     what the runs exercised
    schedules    directed runs: scripts (`scripts_*`) on a `stage`, for what drawn plans rarely bring about
    shrink       makes a failing schedule small
    small        a cluster without time (`smallnode`), of which `exhaust` tries every run within bounds
    command      what can be asked for; `runner` runs seeds in several processes, `summary` adds up
    planted      deliberate mistakes, read from tests/planted, as structural `patches` of the source; `detection`
                 searches for a trial that detects each

docs/simulation.md says how to run it and how to read a failure. Nothing here reads a clock or shared randomness.
"""
