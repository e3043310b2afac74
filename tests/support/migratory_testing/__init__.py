"""Shared test support: test doubles, independent oracles, builders. Look here before you write one.

    waiting         `poll` and `until`: how every test waits

Cores without a socket, under the test's own clock:

    brokers         several logics, links and a ZooKeeper (`zookeeper_tree`); `population`: their clients as numbers
    onelogic        one logic as an edge sees it; `edges`: a bench for an edge
    clientcore      the client's core, with its network played by the test
    machines        state machines that must detect a planted mistake

Real processes and servers, ended with the test:

    processes       brokers; `onebroker`: fixtures for one of them; `ioprocesses`: the other end of an I/O process
    realprometheus  Prometheus servers
    traffic         load on a cluster while a broker fails
    crowd           very many cheap clients

Fakes, for exact faults:

    fakebroker      brokers on another WebSocket library, which may share a memory
    fakekube        an API server; `kubernetes`: objects as it returns them, and the operator's decisions
    fakeprometheus  a Prometheus that misbehaves

Independent of the product's code, as oracles:

    rawclient       WebSocket bytes by hand; `frameoracle`: another parser beside the product's
    prometheus_wire what a Prometheus writes
    accounts        expected results of load runs; `histories`: for the chaos checker
    pages           the parts of a page

Samples and reports:

    recordings      samples of a load run in which a broker dies; `counter_increases`: increases as reports have
    reports         reports without Spark, and objectives of every kind
"""
