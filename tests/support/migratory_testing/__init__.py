"""What tests of several parts share: stand-ins, independent witnesses, builders. Look here before you write one.

    waiting         `poll` and `until`: how every test waits

Cores without a socket, under the test's own clock:

    brokers         several logics, links and a ZooKeeper (`zookeeper_tree`); `population`: their clients as numbers
    onelogic        one logic as an edge sees it; `edges`: an edge on a bench, `edgescript`: the scenarios' language
    scenarios       files with commands and the transcript that they must give
    clientcore      the client's core, its network played by the test
    machines        state machines that must find a planted mistake

Real processes and servers, ended with the test:

    processes       brokers; `onebroker`: one of them behind fixtures; `ioprocesses`: an I/O process's other end
    zookeeper       ensembles; `realprometheus`: Prometheus servers and exporters
    traffic         loads on a cluster whose broker is struck, and what flows meanwhile
    crowd           very many cheap clients
    families        what a process has started

In place of somebody, for exact faults:

    fakebroker      a broker on another WebSocket library, and `oneclient` with it; `smallbroker`: many with one memory
    fakekube        an API server; `kubernetes`: objects as it gives them; `decisions`: of the operator, on these
    fakeprometheus  a Prometheus that misbehaves; `manysamples`: what it has, and the options that ask for that

Independent of the product's code, so that a mistake of it is seen:

    rawclient       the one client with exact WebSocket bytes; `frameoracle`: another parser beside the product's
    prometheus_wire what a Prometheus writes; `promql`: a condition taken apart
    accounts        what load runs must come to; `rises`: what counters rose by; `histories`: for the chaos checker
    chromium        a page in a browser; `pages`: what one is made of

Samples and reports:

    reports         a report of twenty minutes; `recordings`: a minute of load, as scraped; `autumn`: days of 25 hours
    plainreport     a report without Spark; `objectives`: of every kind
"""
