"""Where Vessim lives: signals, traces and microgrids."""
