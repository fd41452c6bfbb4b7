"""Where Flower and PyTorch live: text, model, clients, strategies and users' apps."""
