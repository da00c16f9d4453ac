"""What runs on each node of an attempt. Standard library only.

- __main__: starts the node agent with stop signals blocked from its first line.
- agent: starts torchrun, sends a stop to the ranks, writes the agent's record.
- torchrun: the command line of torchrun and its environment.
- signed_torchrun: torchrun whose rendezvous takes no state of other processes.
- rendezvous: the address and the port at which the ranks meet.
- interfaces: the addresses of the node's network interfaces, and the one of launch.interface.
- oom: how many processes the kernel killed because memory ran out, and the limit of the memory.
"""
