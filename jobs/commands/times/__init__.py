"""Where the time of a run went, and the page with plots.

- page: the report as an HTML page.
- ranking: ranks runs by a metric.
- uses: the seconds of each use of the time, node hours, GPU hours, goodput.
"""
