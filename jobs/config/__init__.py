"""From a YAML file and overrides to a checked Spec, all errors at once.

- load: the whole way from file to Spec.
- loaded: a Spec with the input that it was loaded from.
- yaml_reader: YAML 1.2 text to values with their places.
- overrides: KEY=VALUE on top of the file.
- resolve: fills in paths, variables and canonical forms.
- validate: values against the dataclasses of jobs.contract.spec; the plugin check has more.
- keys: the names of all keys, and the nearest one to a typing error.
"""
