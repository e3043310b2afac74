"""Rendering: documents become tables for terminals and HTML pages. No figure of a report is computed here.

Begin with `tables.py` and `comparison_tables.py` (terminals) or `page.py` (HTML). `plots.py` and `comparison_plots.py`
draw the plots of a page, `canvas.py` turns a drawing into SVG that follows the page's colors.
"""
