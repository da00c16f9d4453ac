"""Adds the command report: where the time of runs went, and the ranking of runs by a metric.

- report: prints the table of uses of the time, the ranking, or both as JSON.
- page: the report as an HTML page with plots, by the template report.html.
- ranking: ranks runs by a metric.
- uses: the seconds of each use of the time, node hours, GPU hours, goodput.
"""

# The timeline in which rank 0 writes its pace: the one that grows with the time of the training.
# `attempt.open` and `attempt.close` read the timeline of rank 0 and must not read this one.
STEPS_WRITER = "steps"
