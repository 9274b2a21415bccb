"""Text to tokens and back, and the text that ships."""
