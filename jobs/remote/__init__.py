"""A command on another host by ssh; a shell beside a rank.

- host: runs a command of the kit on another host over ssh.
- beside_rank: the command shell: a shell, a command or the stacks on the node of a running rank.
"""
