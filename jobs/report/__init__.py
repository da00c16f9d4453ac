"""Where the time of a run went; the page with plots.

- report: the command: text, JSON and page.
- history: reads what a run directory has on the time of a run.
- spans: divides that time into spans, each with its use.
- summary: adds the spans up: time by use, node hours, GPU hours, goodput.
- curves: reads the curves of a run, thinned out.
- ranking: ranks runs by a metric.
- table: the report as text for a terminal.
- charts: decides which charts there are.
- plots: draws a chart as SVG.
- page: the report as an HTML page.
"""
