"""Coverage-guided fuzzing of everything that reads what others wrote: see docs/fuzzing.md.

Begin with `targets/`: each module there is one target, a function of bytes that raises when an oracle does not hold; it
needs no fuzzer to run. `fuzzer.py` runs one target under atheris, in a process of its own; `campaign.py` starts that
process, watches its memory and judges how it ended; `corpus.py` keeps the inputs under tests/fuzz.
"""
