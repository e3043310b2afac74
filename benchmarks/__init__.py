"""What a delivery and an idle client cost, beside the limit of the machine. Run `python -m benchmarks` (`make bench`).

fanout.py    CPU per delivery: the product and two raw send loops on the same work, in interleaved rounds
idle.py      memory per idle subscribed client
rawsend.c, rawsend.py   the raw loops; receiver.py reads what all of them send
docs/loadtest.md, "Benchmarks", explains the method.
"""
