"""Where the time of a run went, and the page with plots.

- charts: decides which charts there are.
- curves: reads the curves of a run, thinned out.
- history: reads what a run directory has on the time of a run.
- page: the report as an HTML page.
- plots: draws a chart as SVG.
- ranking: ranks runs by a metric.
- spans: divides that time into spans, each with its use.
- summary: adds the spans up: time by use, node hours, GPU hours, goodput.
- terminal: the report as text for a terminal.
"""
