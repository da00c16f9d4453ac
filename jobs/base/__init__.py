"""What each process of the kit uses; it imports only the list of plugins. Standard library only."""
