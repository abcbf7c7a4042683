"""What the user sees of a run: a live display on a terminal, plain lines elsewhere, and a summary at the end."""
