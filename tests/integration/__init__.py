"""Real pools and the command line, as a person starts them."""
