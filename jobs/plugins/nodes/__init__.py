"""Which nodes an attempt uses: without suspected ones, with spare ones, within a range of them.

- hooks: the functions of jobs/hooks.py.
- records: what the plugin keeps in the record of an attempt.
- of_nodes: what an attempt shows of its nodes.
- reasons: what the facts of an attempt say against single nodes.
- suspects: which nodes the next attempts do without, by the reasons of all attempts.
- decision: the decision after an attempt, where a node is at fault.
- exclude_nodes: the list of nodes that a job of the run must not get.
- choose_nodes: the nodes of an attempt, from those of the job.
- lost_nodes: finds nodes that are lost in an attempt.
- head: prints where the agents meet, on the first node of an attempt.
"""
