"""What runs on each node of an attempt. Standard library only.

- __main__: starts the node agent with stop signals blocked from its first line.
- agent: starts torchrun, passes a stop on to the ranks, writes the agent's record.
- torchrun: the command line of torchrun and its environment.
- rank: wraps each rank: its log file, and its death with torchrun.
- rendezvous: the address and the port at which the ranks meet.
- oom: whether the kernel killed a process because memory ran out.
- stop_signals: the signals that mean stop, blocked until they can be handled.
"""
