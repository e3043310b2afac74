"""Reports: the pipeline from samples to one document, comparison of documents, and their history.

Begin with `build.py`. `sections.py`, `incident_impact.py` and `notes.py` fill the parts of a document (its types are in
`document.py`). `comparison.py` compares two documents, `history.py` stores many as Parquet rows, `budget.py` adds
these up to rolling error budgets, `csv_tables.py` writes the tables of one as CSV.
`python -m migratory_spark.report FOLDER` writes the JSON Schemas of reports, comparisons and budgets.
"""
