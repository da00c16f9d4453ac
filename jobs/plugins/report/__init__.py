"""Adds the command report: where the time of runs went, and the ranking of runs by a metric.

- report: prints the table of uses of the time, the ranking, or both as JSON.
- page: the report as an HTML page with plots, by the template report.html.
- ranking: ranks runs by a metric.
- uses: the seconds of each use of the time, node hours, GPU hours, goodput.
"""
