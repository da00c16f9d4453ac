"""The part of the plugin trackers around a job.

- hooks: checks log.trackers; gives a run that was held or cancelled its end state there.
"""
