"""A deterministic simulation of a whole cluster: the production cores over a modelled world.

Start with `world.py`, which connects everything and runs one seed. Below it:

    scheduler          the virtual clock: callbacks at moments
    options            what a seed decides: cluster, load, and plan of faults (`plans`)
    injector           injects the faults; `rollouts` those that take many steps
    zookeeper          the ensemble: sessions, ephemerals, one-shot watches, transactions, lost replies
    network            links between brokers: ordered, delayed, broken, cut one way or both, slowed
    connections        client connections: bytes both ways
    process            one process of a broker: a real `Logic`, real `Edge`s, and the execution of their effects
    clients            publishers and subscribers; `load` decides what they do and when
    external_checker   the invariants over the histories that clients and subscribers saw
    internal_checker   the invariants over the brokers' state: copies, promises, coordinators, in `epochs`
    receipt_checker    whether each receipt that a broker gives is justified
    final_checks       what must hold after recovery: nothing leaked, all brokers agree
    coverage           counters of what the runs exercised
    schedules          directed runs: `scripts_*` over a `scripted` cluster, for what random plans rarely reach
    shrink             minimises the faults of a failing run
    runner             runs seeds in several processes; `summary` adds their reports up
    planted            deliberate mistakes from tests/planted, as structural `patches` of the source; `detection`
                       searches for a trial that detects each

docs/contributing/simulation.md says how to run it and how to read a failure. Nothing here reads a real clock or shared
randomness.
"""
