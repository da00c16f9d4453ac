"""More models, objectives and data sets, a transform and a schedule, by their names in a spec.

- hooks: what the trainer finds in this plugin; a schedule of the learning rate.
- models: ResNets, and how the models of this plugin fit to the data.
- gpt: a small GPT, the model for tokens.
- objectives: regression and language models.
- image_files: CIFAR-10 files and folders of images.
- tokens: token files and Python's source code.
- image: augmentation of images on the device.
"""
