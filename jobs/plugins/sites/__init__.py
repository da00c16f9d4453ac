"""What sites need: one's settings of a site, written once; other preemption; no requeue.

- hooks: the hooks of the plugin.
- doctor: shows whether runs can be queued and can train here.
- layers: one's site file, and the files that a spec extends.
- successor: the job that waits for the end of the present one.
- after_end: what continues the run after a job, without a requeue by the kit.
- predecessor: whether a successor job may continue the run.
- preemption: what this Slurm does with a job in its partition and QOS.
- requeue_policy: whether Slurm requeues a preempted job by itself.
"""
