"""The report as one page that needs nothing else: no script, no font, no image from elsewhere.

`page.py` puts it together (`render_page`), `plots.py` draws, `canvas.py` turns drawings into SVG that follows the
page's light and dark colours, `templates/` holds the page itself. Nothing is computed here.
"""
