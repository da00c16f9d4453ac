"""What special sites need: preemption that cancels jobs, or requeues them itself; no requeue.

- hooks: the hooks of the plugin.
- successor: the job that waits for the end of the present one.
- after_end: what continues the run after a job, without a requeue by the kit.
- predecessor: whether a successor job may continue the run.
- preemption: what this Slurm does with a job in its partition and QOS.
- requeue_policy: whether Slurm requeues a preempted job by itself.
"""
