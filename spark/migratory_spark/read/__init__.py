"""Reading: samples from files, tables and servers become whole series, each sample counted once.

Begin with `samples.py` (sources of samples). `sample_reader.py` reads them in one step or two. `series_pack.py` packs
rows by series where they are read, and `thinning.py` says which samples are left out there. `merge.py` puts the packs
of one series together, `series_store.py` plans the work on Spark and stores the result for several passes.
"""
