"""What runs on each node of an attempt. Standard library only."""
