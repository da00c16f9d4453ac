"""The model, and the optimizer that updates its weights.

- models: the built-in models.
- optim: the optimizer and the learning rate by step.
- precision: autocast and the gradient scaler.
- build: model, data and optimizer of this rank, wrapped in DDP.
- evaluate: loss and accuracy on the held-out samples.
"""
