"""Step folders: manifest, save, load, merge."""
