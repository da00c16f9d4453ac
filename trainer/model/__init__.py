"""The model, and the optimizer that updates its weights.

- objectives: what happens to one batch; classification.
- mean_gradient: divides the losses of a step by its number of items.
- models: creates the model of a spec; the models of the core, and how one fits to the data.
- optim: the optimizer and the learning rate by step.
- precision: autocast and the gradient scaler.
- training_data: training batches and held-out samples of this rank.
- replica: model, optimizer and objective of this rank.
- build: builds the replica in the order that a bitwise resume needs; sets up torch.
"""
