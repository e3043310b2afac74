"""Coverage-guided fuzzing of every parser of foreign input: see docs/contributing/fuzzing.md.

Begin with `targets/`: each module there is one target, a function of bytes that raises when an oracle does not hold;
it runs without a fuzzer. `fuzzer.py` runs one target under atheris in a process of its own. `campaign.py` starts
that process, monitors its memory and classifies its end. `corpus.py` stores the inputs under tests/fuzz.
"""
