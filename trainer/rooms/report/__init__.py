"""What the command report needs of a training: rank 0's pace.

- hooks: the callback of a rank, which writes it.
"""
