"""What model families share: one kind of layer a file."""
