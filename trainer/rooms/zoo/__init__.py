"""The built-in models, objectives, data sets and the transform, by the names that a spec has.

- hooks: what the trainer finds in this room.
- models: the models for numbers and images, and how a model fits to the data.
- gpt: a small GPT, the model for tokens.
- objectives: classification, regression and language models.
- data_sets: the data sets that need no files, and the list of all.
- image_files: CIFAR-10 files and folders of images.
- tokens: token files, text and Python's source code.
- image: augmentation of images on the device.
- schedules: two schedules of the learning rate.
"""
