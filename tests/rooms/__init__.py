"""The tests of each room, in a folder of its name: deleted together with the room."""
