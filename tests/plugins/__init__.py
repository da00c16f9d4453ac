"""The tests of each plugin, in a folder of its name: deleted together with the plugin."""
