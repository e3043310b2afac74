"""`python -m migratory_resources.crd FOLDER...`: write the custom resource definitions into each folder, and print the
files' paths."""

import sys
from pathlib import Path

from migratory_resources.crd.definitions import write_definitions

for folder in sys.argv[1:]:
    for path in write_definitions(Path(folder)):
        print(path)
