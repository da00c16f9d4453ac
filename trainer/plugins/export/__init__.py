"""The part of the plugin export that needs torch.

- __main__: writes the weights of a checkpoint as one safetensors file, or as several.
"""
