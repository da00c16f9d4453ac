"""The part of the plugin check that needs torch.

- __main__: builds the parts of a frozen run once, without a GPU and without other ranks.
"""
